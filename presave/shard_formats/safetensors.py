"""Format "safetensors": one file for each shard, memory-mapped (https://github.com/huggingface/safetensors)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.mapped_file import map_file
from presave.shard_formats.arrays import ArrayShard, read_errors, validate_arrays
from presave.shard_formats.format import Format

# NumPy's dtype strings by the names that the format uses.
DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
# The header may have this many bytes for each column, and this many for everything else.
COLUMN_NBYTES, MAX_METADATA_NBYTES = 1 << 10, 1 << 20


class Safetensors(Format):
    """A JSON header with the position of every array, followed by the arrays. It cannot contain code."""

    name = "safetensors"

    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        for name, array in columns.items():
            if array.dtype.str not in DTYPES.values():
                raise StoreError(f"format 'safetensors' has no {array.dtype}, the dtype of column {name!r}; use 'npy'")
        try:
            from safetensors import SafetensorError
            from safetensors.numpy import save_file
        except ImportError as error:
            raise StoreError("format 'safetensors' needs safetensors: pip install 'fair-etl[formats]'") from error
        path = folder / f"shard-{shard_name}.safetensors"
        try:
            save_file(dict(columns), path)
        except SafetensorError as error:
            raise OSError(f"safetensors: {error}") from error
        return [path]

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ArrayShard:
        (path,) = files
        errors = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
        with read_errors(path, *errors):
            arrays = _map(path, MAX_METADATA_NBYTES + COLUMN_NBYTES * len(columns))
        return ArrayShard(validate_arrays(path, arrays, columns))


def _map(path: Path, max_header_nbytes: int) -> dict[str, np.ndarray]:
    # Not with the safetensors library, because it copies what it reads. The positions in the header suffice.
    content = map_file(path)
    header_nbytes = int.from_bytes(content[:8].tobytes(), "little")
    if header_nbytes > min(max_header_nbytes, content.size - 8):
        raise ValueError(f"its header of {header_nbytes} bytes does not fit")
    header = json.loads(content[8 : 8 + header_nbytes].tobytes())
    data = content[8 + header_nbytes :]
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            if not 0 <= first <= last <= data.size:
                raise ValueError(f"{name[:40]!r} claims bytes {first} to {last} of {data.size:,}")
            arrays[name] = data[first:last].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays
