"""A request answered by sample.py in a fresh process, with all that it starts ended afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 900.0
# After its answer, in which a loader may end its workers in order and remove its shared memory.
ENDING_SECONDS = 10.0
POLL_SECONDS = 0.02


class Failed(Exception):  # noqa: N818 - the word the reader looks for
    """A loader did not do what it was asked for; the text is the reason, in one line."""


def ask(interpreter: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a fresh process. Raises `Failed` where it is an error, or there is none."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(request))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(request["threads"]))
        with (Path(folder) / "output").open("w+b") as output:
            process = subprocess.Popen(
                [interpreter, "-m", "benchmarks.peers.sample", str(question), str(answer)],
                cwd=folder,
                env={**os.environ, **threads, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                _wait(process, answer)
            finally:
                _end_session(process)
            output.seek(0)
            said = output.read().decode(errors="replace")
        if not answer.exists():
            raise Failed(_explain(process.returncode, said))
        result: dict[str, Any] = json.loads(answer.read_text())
    if "error" in result:
        raise Failed(" ".join(result["error"].split()))
    return result


def _wait(process: subprocess.Popen[bytes], answer: Path) -> None:
    """Until the process has ended, or has answered and had the time to end."""
    ends = time.monotonic() + TIMEOUT_SECONDS
    answered = False
    while process.poll() is None and time.monotonic() < ends:
        if not answered and answer.exists():
            answered, ends = True, time.monotonic() + ENDING_SECONDS
        time.sleep(POLL_SECONDS)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of it: workers outlive a process that crashes."""
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _explain(status: int, said: str) -> str:
    last = ([line.strip() for line in said.splitlines() if line.strip()] or ["it said nothing"])[-1]
    if status == -signal.SIGKILL:
        return f"no answer after {TIMEOUT_SECONDS:.0f} s: {last}"
    return f"ended by {signal.Signals(-status).name}: {last}" if status < 0 else f"ended with {status}: {last}"
