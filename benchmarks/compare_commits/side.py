"""One of two commits that are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.compare_commits.commits import Commit
from benchmarks.placement import ENVIRONMENT
from benchmarks.side import Failed, Side


class CommitSide(Side):
    """The process of `commit`, for `strategies`. `hash_seed` is that of its strings."""

    def __init__(self, commit: Commit, strategies: Sequence[str], hash_seed: int) -> None:
        self.commit = commit
        self._stores = tempfile.TemporaryDirectory()
        super().__init__(f"commit {commit}", "compare_commits.server", hash_seed, commit.folder, ENVIRONMENT)
        self.tell({"folder": self._stores.name, "strategies": list(strategies)})

    def wait_until_ready(self) -> None:
        """Until it has imported everything and written its stores. Raises `Failed` where it imported others."""
        for package, folder in self.hear().items():
            if Path(folder).resolve() != self.commit.folder.resolve():
                raise Failed(f"{self.name} imported {package} from {folder}, not from {self.commit.folder}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._stores.cleanup()
