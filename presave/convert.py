"""Rewriting a store in another format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from presave.store import Store, open_store
from presave.write import Progress, write


def convert(
    source: str | Path,
    target: str | Path,
    *,
    format: str,
    jobs: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Write the records of the store `source` as a new store `target` in `format`; returns it open.

    One record a job is in memory at a time. Stage, fingerprint and provenance are kept. Raises as `open_store` and
    `write` do.
    """
    with open_store(source) as store:
        return write(target, _Records(store), format=format, jobs=jobs, progress=progress)


class _Records:
    """The records of a store, with what its manifest says of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stage = store.manifest.stage
        self.fingerprint = store.manifest.fingerprint
        self.provenance = store.manifest.provenance

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Any:
        return self._store[index]
