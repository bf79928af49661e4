"""A process that runs a module of this folder and answers requests, a line of JSON each."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.workload import COMPUTE_THREADS


class NoAnswer(Exception):  # noqa: N818 - the word the reader looks for
    """The process has ended, or said nothing for too long."""


class ServerProcess:
    """A process, in a session of its own, that runs `main` of `module`, through alone.py, against the installed
    packages, or those in the folder `packages`; with `environment` besides that of this process, without what is None.
    """

    def __init__(
        self,
        module: str,
        hash_seed: int = 0,
        packages: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        # Before libraries start their thread pools: a server with threads could not be forked.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(COMPUTE_THREADS))
        wanted = {**os.environ, **threads, "PYTHONHASHSEED": str(hash_seed), **(environment or {})}
        variables = {name: value for name, value in wanted.items() if value is not None}
        if packages is not None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("alone.py")), module],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The number of the process, which is that of its session, too."""
        return self._process.pid

    def tell(self, request: Mapping[str, Any]) -> None:
        """Send `request` without waiting for the answer. Raises `NoAnswer` where the process has ended."""
        if self._process.stdin is None:
            raise RuntimeError("the process was started without pipes")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NoAnswer(f"ended: {self._tail()}") from None

    def hear(self, timeout: float) -> dict[str, Any]:
        """The answer to what it was told. Raises `NoAnswer`, after `timeout` seconds or where the process has ended."""
        if self._process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise NoAnswer(f"gave no answer for {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise NoAnswer(f"ended: {self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it and whatever it has started."""
        # The whole session: what hangs is a child of the server.
        os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def _tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace").strip()
