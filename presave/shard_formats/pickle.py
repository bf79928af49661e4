"""Format "pickle": one pickled dictionary of arrays for each shard, as many projects do for batches. For comparison."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.shard_formats.arrays import LoadedShard, unreadable_error, validate_arrays
from presave.shard_formats.format import CheckOption

PROTOCOL = 5


class Pickle:
    """Pickled shards of 128 records. Reading a record unpickles its whole shard, which runs any code in the file."""

    name = "pickle"
    is_trusted_only = True
    reads_whole_shards = True
    has_file_for_each_column = False
    options: Mapping[str, CheckOption] = MappingProxyType({})
    shard_records: int | None = 128

    def write_columns(
        self,
        folder: Path,
        shard_name: str,
        columns: Mapping[str, np.ndarray],
        options: Mapping[str, Any],  # noqa: ARG002 - this format has none
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
    try:
        with path.open("rb") as file:
            content = pickle.load(file)  # noqa: S301 - opened only with trusted=True
    except Exception as error:  # a damaged pickle can raise anything
        raise unreadable_error(path, error) from error
    if not isinstance(content, dict):
        raise StoreError(f"{path}: holds a {type(content).__name__}, not a dictionary of arrays")
    return validate_arrays(path, content, columns)
