"""Format "npy": one `.npy` file for each column of a shard, read through a memory map."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.mapped_file import map_file
from presave.shard_formats.arrays import ArrayShard, read_errors
from presave.shard_formats.format import Format


class Npy(Format):
    """`.npy` files (NEP 1), memory-mapped. Never allows pickled objects."""

    name = "npy"
    has_file_for_each_column = True

    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        paths = []
        for name, array in columns.items():
            path = folder / f"{name}-{shard_name}.npy"
            with path.open("wb") as file:
                file.write(_header(array.dtype.str, array.shape))
                file.write(array.data)
            paths.append(path)
        return paths

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ArrayShard:
        return ArrayShard({column.name: _map(path, column) for column, path in zip(columns, files, strict=True)})


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _map(path: Path, column: Column) -> np.ndarray:
    # The header is compared, not parsed, because the manifest determines its every byte.
    header = _header(column.dtype, column.array_shape)
    with read_errors(path, OSError):
        content = map_file(path)
    if len(content) != len(header) + column.nbytes or content[: len(header)].tobytes() != header:
        raise StoreError(
            f"{path}: is not {np.dtype(column.dtype)} of shape {column.array_shape}, as the manifest says; "
            "`etl verify` lists all that is damaged"
        )
    return content[len(header) :].view(column.dtype).reshape(column.array_shape)
