"""One of two commits that are compared: the process that runs it, and what that is told."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.placement import ENVIRONMENT
from benchmarks.server_process import NoAnswer, ServerProcess

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT_SECONDS = 120.0


class Failed(Exception):  # noqa: N818 - the word the reader looks for
    """The process of a commit did not answer, or answered with an error."""


class Side:
    """A context manager around the process of a commit, for `strategies`. `hash_seed` is that of its strings.

    `tell`, `hear` and `ask` raise `Failed` where the process has an error, has ended or does not answer.
    """

    def __init__(self, commit: Commit, strategies: Sequence[str], hash_seed: int) -> None:
        self.commit = commit
        self._stores = tempfile.TemporaryDirectory()
        self._process = ServerProcess("compare_commits.server", hash_seed, commit.folder, ENVIRONMENT)
        self.tell({"folder": self._stores.name, "strategies": list(strategies)})

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
        try:
            self._process.tell(request)
        except NoAnswer as error:
            raise self._failed(error) from None

    def hear(self) -> dict[str, Any]:
        """The answer to what it was told."""
        try:
            answer = self._process.hear(TIMEOUT_SECONDS)
        except NoAnswer as error:
            raise self._failed(error) from None
        if "error" in answer:
            raise Failed(f"commit {self.commit} cannot be measured: {answer['error'].strip()}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close()
        self._stores.cleanup()

    def _failed(self, error: NoAnswer) -> Failed:
        return Failed(f"the process of commit {self.commit} {error}")
