"""Rewriting a store in another format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    shard_nbytes: int | None = None,
    options: Mapping[str, Any] | None = None,
    trusted: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Write the records of the store `source` as a new store `target` in `format`; returns it open.

    One shard a job is in memory at a time. Stage, fingerprint and provenance are kept; the records that `source` had
    skipped are named in the provenance. Raises as `open_store` and `write` do.
    """
    with open_store(source, trusted=trusted) as store:
        return write(
            target,
            _Records(store),
            format=format,
            jobs=jobs,
            shard_nbytes=shard_nbytes,
            options=options,
            progress=progress,
        )


class _Records:
    """The records of a store, with what its manifest says of them."""

    def __init__(self, store: Store) -> None:
        manifest = store.manifest
        self._store = store
        self.stage = manifest.stage
        self.fingerprint = manifest.fingerprint
        self.provenance = dict(manifest.provenance)
        if manifest.skipped:
            self.provenance["skipped"] = [{"record": each.record, "cause": each.cause} for each in manifest.skipped]
        self.ragged = frozenset(field.name for field in manifest.fields if field.is_ragged)

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Any:
        return self._store[index]
