"""One of two commits that are compared: the process that runs it, and what that is told."""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.layout import with_fixed_layout
from benchmarks.fork_ready import start_server

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT_SECONDS = 120.0


class Failed(Exception):  # noqa: N818 - the word the reader looks for
    """The process of a commit did not answer, or answered with an error."""


class Side:
    """A context manager around the process of a commit. `hash_seed` is that of its strings.

    `ask` raises `Failed` where the process has an error, has ended or does not answer.
    """

    def __init__(self, commit: Commit, hash_seed: int) -> None:
        self.commit = commit
        self._stores = tempfile.TemporaryDirectory()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving
        self._process = start_server(
            "compare_commits.server", self._errors, hash_seed, commit.folder, with_fixed_layout()
        )
        self.tell({"folder": self._stores.name})

    def wait_until_ready(self) -> None:
        """Until it has imported everything and written its stores. Raises `Failed` where it imported others."""
        for package, folder in self.hear().items():
            if Path(folder).resolve() != self.commit.folder.resolve():
                raise Failed(f"commit {self.commit} imported {package} from {folder}, not from {self.commit.folder}")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to `request`."""
        self.tell(request)
        return self.hear()

    def tell(self, request: dict[str, Any]) -> None:
        """Send `request` without waiting for the answer."""
        if self._process.stdin is None:
            raise RuntimeError("the process was started without pipes")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"the process of commit {self.commit} ended: {self._tail()}") from None

    def hear(self) -> dict[str, Any]:
        """The answer to what it was told."""
        if self._process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        if not select.select([self._process.stdout], [], [], TIMEOUT_SECONDS)[0]:
            raise Failed(f"the process of commit {self.commit} gave no answer for {TIMEOUT_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"the process of commit {self.commit} ended: {self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(f"commit {self.commit} cannot be measured: {answer['error'].strip()}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()
        self._stores.cleanup()

    def _tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace").strip()
