"""What a storage format is: how one shard is written, and how rows of it are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from presave.manifest import Shard
from presave.schema import Schema


class ShardReader(Protocol):
    """One shard, open for reading. May be used by several threads at once."""

    def gather(self, field: str, rows: np.ndarray, out: np.ndarray, slots: np.ndarray | slice) -> None:
        """Write row `rows[k]` of `field` into `out[slots][k]`, for all k.

        `rows` is int64 of shape `(count,)`; `out` has the dtype of the field and shape `(records, *field shape)`.
        """

    def close(self) -> None:
        """Give back files and mappings."""


class Format(Protocol):
    """A way to keep shards on disk."""

    name: str

    def write_shard(
        self, folder: Path, number: int, schema: Schema, records: int, rows: Iterable[Mapping[str, np.ndarray]]
    ) -> Shard:
        """Write the `records` arrays of `rows` as shard `number` into `folder`, flushed to the disk."""

    def open_shard(self, folder: Path, shard: Shard, schema: Schema) -> ShardReader:
        """Open a shard; raises `StoreError` naming the file where it is not what the manifest says."""
