"""Conversion of a store to another format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from presave.parallel_write import Progress
from presave.store import Store, open_store, ragged_of
from presave.writer import write


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
    """Write the records of a store as a new store in another format.

    Parameters
    ----------
    source : str or Path
        Folder of the store to read.
    target : str or Path
        Folder of the new store. It must not exist.
    format : str
        Format of the new store, one of `presave.formats()`.
    jobs : int
        Number of shards that are written at once, as in `write`.
    shard_nbytes : int, optional
        Approximate size of a shard in bytes, as in `write`.
    options : mapping of str to object, optional
        Options of the format, as in `write`.
    trusted : bool
        As in `open_store`, for `source`.
    progress : callable, optional
        Called with a `Progress` after each shard, as in `write`.

    Returns
    -------
    Store
        The new store, open.

    Raises
    ------
    StoreError
        As in `open_store` and `write`.

    Notes
    -----
    Each job holds one shard in memory. One thread reads a store of the format "pickle". Stage, fingerprint and
    provenance are kept. Records that were skipped when `source` was written are listed under "skipped" in the
    provenance of the new store.

    Examples
    --------
    >>> store = presave.convert("photos.store", "photos.h5.store", format="hdf5", options={"compression": "zstd"})
    """
    with open_store(source, trusted=trusted) as store:
        return write(
            target,
            _StoredRecords(store),
            format=format,
            jobs=jobs,
            shard_nbytes=shard_nbytes,
            options=options,
            progress=progress,
        )


class _StoredRecords:
    """The records of a store, with the attributes that `write` copies into the new manifest."""

    def __init__(self, store: Store) -> None:
        manifest = store.manifest
        self._store = store
        # The store keeps the shard that was read last: several threads would read a whole one for each record.
        self.thread_safe = not store.reads_whole_shards
        self.stage = manifest.stage
        self.fingerprint = manifest.fingerprint
        self.provenance = dict(manifest.provenance)
        if manifest.skipped:
            self.provenance["skipped"] = [{"record": each.record, "cause": each.cause} for each in manifest.skipped]
        self.ragged = ragged_of(store)

    @property
    def identity(self) -> dict[str, str]:
        return self._store.identity

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Any:
        return self._store[index]
