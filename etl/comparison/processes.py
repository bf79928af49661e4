"""Every figure of a comparison, from fresh processes: the client of `tasks.py`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import etl
from etl.comparison.candidate import Candidate
from etl.comparison.samples import Checked, Loads, Profile, Sample, Spans, Trials, Written
from etl.comparison.threads import Threads
from etl.comparison.workload import Workload
from etl.measuring.layout import draw_environment, draw_hash_seed
from etl.measuring.processes import FreshServers, MeasurementError, Server
from etl.measuring.values import JsonValues, to_json

if TYPE_CHECKING:
    from typing_extensions import Self

ANSWER_SECONDS = 900.0
# Not with -m, which looks for modules in the working folder first: that may be the folder with somebody else's data.
# This very package is found if it was not installed, too.
START = """
import sys
sys.path[:] = [path for path in sys.path if path]
sys.path.append(sys.argv[1])
from etl.measuring.server import main
main()
"""
Answer = TypeVar("Answer", bound=JsonValues)


class InputError(ValueError):
    """What was given to the comparison is wrong: its source, a record, the model, a setting."""


class Processes:
    """A context manager around the server that forks a process for each figure.

    Every method raises `InputError` for what the caller can mend, and `MeasurementError` for anything else. After
    either, the next figure comes from a new server.

    Parameters
    ----------
    workload : Workload
        What is compared. Its records, and how the CPUs are split, may change from one figure to the next.
    affinity : collection of int
        The CPUs that every process is bound to.
    """

    def __init__(self, workload: Workload, affinity: Collection[int]) -> None:
        self._workload = workload
        self._affinity = sorted(affinity)
        self._servers = FreshServers(self._start)

    def renew(self) -> None:
        """Start a new server, with everything in it laid out anew."""
        with _mendable():
            self._servers.renew()

    def profile(self) -> Profile:
        """Return the profile of the raw pipeline."""
        return self._ask("profile", Profile)

    def write(self, format: str, stage: str, jobs: int) -> Written:
        """Presave, and return what it took."""
        return self._ask("write", Written, format=format, stage=stage, jobs=jobs)

    def try_splits(self, candidate: Candidate, seconds: float) -> dict[Threads, list[float]]:
        """Return the seconds of a batch with each split of the CPUs, from short trials of about `seconds` in all."""
        tried = self._ask("try_splits", Trials, candidate, seconds=seconds)
        return {each.threads: each.seconds_per_batch for each in tried.trials}

    def check(self, candidate: Candidate, compute_threads: int, trains: bool) -> Checked:
        """Return what an epoch of `candidate` holds, and what training on it ends with."""
        return self._ask("check", Checked, candidate, compute_threads=compute_threads, trains=trains)

    def measure(self, candidate: Candidate, with_etl_alone: bool) -> Sample:
        """Return one sample of all figures."""
        return self._ask("measure", Sample, candidate, with_etl_alone=with_etl_alone)

    def load(self, candidate: Candidate) -> Loads:
        """Return one sample of loading alone."""
        return self._ask("load", Loads, candidate)

    def timeline(self, candidate: Candidate) -> Spans:
        """Return when `candidate` waited, computed and loaded."""
        return self._ask("timeline", Spans, candidate)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.close()

    def _ask(self, task: str, kind: type[Answer], candidate: Candidate | None = None, **arguments: Any) -> Answer:
        request = {
            "task": task,
            "candidate": to_json(candidate),
            "arguments": arguments,
            "state": self._workload.state().to_json(),
            "affinity": self._affinity,
        }
        with _mendable():
            answer = self._servers.sample(task if candidate is None else self._workload.name(candidate), request)
        return kind.from_json(answer)

    def _start(self) -> Server:
        return Server(
            "the comparison",
            [sys.executable, "-c", START, str(Path(etl.__file__).parents[1]), "etl.comparison.tasks:prepare"],
            dict(self._workload.as_dict()),
            timeout=ANSWER_SECONDS,
            hash_seed=draw_hash_seed(),
            # For processes that it starts in turn, as Python 3.11 and later have it.
            environment={"PYTHONSAFEPATH": "1", **draw_environment()},
        )


@contextmanager
def _mendable() -> Iterator[None]:
    """Raise `InputError` for what the caller can mend."""
    try:
        yield
    except MeasurementError as error:
        if error.is_input:
            raise InputError(error.reason) from error
        raise
