"""Format "pickle": one pickled dictionary of arrays for each shard, as many projects do for batches. For comparison."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.shard_formats.arrays import LoadedShard, read_errors, validate_arrays
from presave.shard_formats.format import Format

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

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> LoadedShard:
        (path,) = files
        if not path.is_file():
            raise StoreError(f"{path}: is missing; `etl verify` lists all that is damaged")
        return LoadedShard(partial(_load, path, tuple(columns)))


def _load(path: Path, columns: Sequence[Column]) -> dict[str, np.ndarray]:
    with read_errors(path, Exception), path.open("rb") as file:  # a damaged pickle can raise anything
        content = pickle.load(file)  # noqa: S301 - opened only with trusted=True
    if not isinstance(content, dict):
        raise StoreError(f"{path}: holds a {type(content).__name__}, not a dictionary of arrays")
    return validate_arrays(path, content, columns)
