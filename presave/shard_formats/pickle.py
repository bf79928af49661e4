"""Format "pickle": one pickled dictionary of arrays for each shard, as many projects do for batches. For comparison."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.shard_formats.arrays import ArrayShard, read_errors, validate_arrays
from presave.shard_formats.format import ColumnReader, Format

PROTOCOL = 5


class Pickle(Format):
    """Pickled shards of 128 records. Reading a record unpickles its whole shard, which runs any code in the file."""

    name = "pickle"
    is_trusted_only = True
    reads_whole_shards = True
    shard_records = 128

    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        path = folder / f"batch-{shard_name}.pickle"
        with path.open("wb") as file:
            pickle.dump(dict(columns), file, protocol=PROTOCOL)
        return [path]

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> PickledShard:
        (path,) = files
        if not path.is_file():
            raise StoreError(f"{path}: is missing; `etl verify` lists all that is damaged")
        return PickledShard(path, columns)


class PickledShard:
    """A shard that each call of `columns` reads as a whole."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path = path
        self._specs = columns

    def columns(self) -> Mapping[str, ColumnReader]:
        with read_errors(self._path, Exception), self._path.open("rb") as file:  # a damaged pickle can raise anything
            content = pickle.load(file)  # noqa: S301 - opened only with trusted=True
        if not isinstance(content, dict):
            raise StoreError(f"{self._path}: holds a {type(content).__name__}, not a dictionary of arrays")
        return ArrayShard(validate_arrays(self._path, content, self._specs)).columns()

    def close(self) -> None:
        """Do nothing: no file stays open."""
