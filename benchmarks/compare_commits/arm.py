"""One of two commits that are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare_commits.commits import Commit
from benchmarks.measuring.layout import ENVIRONMENT, draw_environment
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.servers import start_server

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Arm:
    """A commit and its server."""

    commit: Commit
    server: Server

    def wait_until_ready(self) -> None:
        """Wait until it has imported everything and written its stores.

        Raises
        ------
        MeasurementError
            If it imported packages of another folder.
        """
        for package, folder in self.server.wait_until_ready().items():
            if Path(folder).resolve() != self.commit.folder.resolve():
                raise MeasurementError(
                    f"{self.server.name} imported {package} from {folder}, not from {self.commit.folder}"
                )


@contextmanager
def open_arm(commit: Commit, strategies: Sequence[str], hash_seed: int) -> Iterator[Arm]:
    """Start the server of `commit` for `strategies`; its stores go with it."""
    with (
        tempfile.TemporaryDirectory() as stores,
        start_server(
            f"commit {commit}",
            "compare_commits.serving:prepare",
            {"folder": stores, "strategies": list(strategies)},
            packages=commit.folder,
            hash_seed=hash_seed,
            environment={**ENVIRONMENT, **draw_environment()},
            timeout=TIMEOUT_SECONDS,
        ) as server,
    ):
        yield Arm(commit, server)
