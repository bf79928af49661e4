"""The client of `server.py`: every strategy's figures from processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

import etl
from etl.comparison.candidate import Candidate
from etl.comparison.workload import Threads, Workload

if TYPE_CHECKING:
    from typing_extensions import Self

ANSWER_SECONDS = 900.0
# Not with -m, which looks for modules in the working folder first: that may be the folder with somebody else's data.
# This very package is found where it was not installed, too.
START = """
import sys
sys.path[:] = [path for path in sys.path if path]
sys.path.append(sys.argv[-1])
from etl.comparison.server import main
main()
"""
# Free memory for a process to be kept, in units of the largest so far.
ROOM_FACTOR = 4


class InputError(ValueError):
    """What was given to the comparison is wrong: its source, a record, the model, a setting."""


class MeasurementError(RuntimeError):
    """A figure could not be taken. `text` is the whole of what is known, a traceback where there is one."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class Processes:
    """A context manager around the server, which is started anew after a process that does not come back.

    Raises `InputError` for what is the caller's to mend, and `MeasurementError` for anything else.
    """

    def __init__(self, workload: Workload, affinity: Collection[int]) -> None:
        self._workload = workload
        self._affinity = sorted(affinity)
        self._process: subprocess.Popen[bytes] | None = None
        self._can_fork = True
        self._keeps = True
        self._largest_nbytes = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving

    def profile(self) -> dict[str, Any]:
        """The profile of the raw pipeline."""
        return self._ask("profile")

    def write(self, format: str, stage: str, jobs: int) -> dict[str, Any]:
        """Presave; seconds and bytes."""
        return self._ask("write", format=format, stage=stage, jobs=jobs)

    def try_splits(self, candidate: Candidate, seconds: float) -> dict[Threads, list[float]]:
        """Seconds of a batch with each split of the CPUs, in short trials that take about `seconds` in all."""
        found = self._ask("try_splits", candidate=candidate.as_dict(), seconds=seconds)
        return {Threads(**each["threads"]): each["seconds_per_batch"] for each in found["trials"]}

    def check(self, candidate: Candidate, compute_threads: int, trains: bool) -> dict[str, Any]:
        """What an epoch of `candidate` holds, and what training on it ends with."""
        return self._ask("check", candidate=candidate.as_dict(), compute_threads=compute_threads, trains=trains)

    def measure(self, candidate: Candidate, with_etl_alone: bool) -> dict[str, Any]:
        """One sample of all figures of `candidate`: from the process that took its last, with all that was made ready
        there, where the machine has memory for one of each strategy, otherwise from a fresh one.
        """
        if psutil.virtual_memory().available < ROOM_FACTOR * self._largest_nbytes:
            self._keeps = False
        name = json.dumps(candidate.as_dict()) if self._keeps else None
        sample = self._ask("measure", name, candidate=candidate.as_dict(), with_etl_alone=with_etl_alone)
        self._largest_nbytes = max(self._largest_nbytes, sample["peak_memory"])
        # A device's own memory is not looked at.
        self._keeps = self._keeps and sample["device"] in ("cpu", "none")
        return sample

    def load(self, candidate: Candidate) -> dict[str, Any]:
        """One sample of loading alone."""
        return self._ask("load", candidate=candidate.as_dict())

    def timeline(self, candidate: Candidate) -> dict[str, Any]:
        """When `candidate` waited, computed and loaded."""
        return self._ask("timeline", candidate=candidate.as_dict())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._errors.close()

    def _ask(self, task: str, keep: str | None = None, **arguments: Any) -> dict[str, Any]:
        if self._process is None:
            self._start()
        request = {
            "task": task,
            "records": len(self._workload.records),
            "plain_compute": self._workload.plain_compute,
            "chosen": [
                {"candidate": candidate.as_dict(), "threads": asdict(threads)}
                for candidate, threads in self._workload.chosen.items()
            ],
            "affinity": self._affinity,
            "keep": keep,
            "end_kept": not self._keeps,
            "arguments": arguments,
        }
        try:
            answer = self._exchange(request, task)
        except BaseException:  # interrupted, too: what it answers later would be taken for another's
            self._stop()
            raise
        if not self._can_fork:
            self._stop()
        return _figures(answer, task)

    def _start(self) -> None:
        # OpenBLAS starts its threads when it is loaded, and a server with threads could not be forked. How many compute
        # has is set in the fork.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, "etl.comparison.server", str(Path(etl.__file__).parents[1])],
            # For processes that it starts in turn, as Python 3.11 and later have it.
            env={**os.environ, **threads, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        try:
            answer = self._exchange(self._workload.as_dict(), "start")
            self._can_fork = bool(_figures(answer, "start")["can_fork"])
        except BaseException:
            self._stop()
            raise

    def _exchange(self, message: Any, task: str) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the server was not started, or without pipes")
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise MeasurementError(f"the measuring process had ended before {task!r}", self._tail()) from error
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise MeasurementError(f"no answer to {task!r} after {ANSWER_SECONDS:g} s", self._tail())
        line = process.stdout.readline()
        if not line:
            raise MeasurementError(f"the measuring process ended at {task!r}", self._tail())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The whole session: what hangs is a child of the server.
            with contextlib.suppress(ProcessLookupError):  # all of it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace")


def _figures(answer: dict[str, Any], task: str) -> dict[str, Any]:
    """`answer`; raises the error that it tells of."""
    if "error" not in answer:
        return answer
    if answer["is_input"]:
        raise InputError(answer["error"])
    text = answer.get("traceback", answer["error"])
    raise MeasurementError(f"{answer.get('kind', '')} at {task!r}: {answer['error']}".strip(), text)
