"""Format "npy": one `.npy` file for each field and shard, read through a memory map."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from presave.checksum import ChecksumWriter
from presave.errors import StoreError
from presave.manifest import Shard, StoredFile
from presave.schema import Field, Schema

# Rows up to this many bytes are gathered by one fancy index; larger ones by one copy each, which spares a temporary.
SMALL_ROW_NBYTES = 4096


class Npy:
    """`.npy` files (NEP 1), memory-mapped. Never allows pickled objects."""

    name = "npy"

    def write_shard(
        self, folder: Path, number: int, schema: Schema, records: int, rows: Iterable[Mapping[str, np.ndarray]]
    ) -> Shard:
        with ExitStack() as open_files:
            writers = {}
            for name, field in schema.items():
                file = open_files.enter_context((folder / _file_name(field, number)).open("wb"))
                open_files.callback(_flush, file)
                writers[name] = ChecksumWriter(file)
                writers[name].write(_header(field, records))
            for arrays in rows:
                for name, writer in writers.items():
                    writer.write(arrays[name].data)
        files = tuple(
            StoredFile(_file_name(schema[name], number), writer.nbytes, writer.hexdigest())
            for name, writer in writers.items()
        )
        return Shard(records, files)

    def open_shard(self, folder: Path, shard: Shard, schema: Schema) -> NpyShard:
        # The files of a shard stand in the order of the schema's fields.
        arrays = {
            field.name: _map(folder / file.name, field, shard.records)
            for field, file in zip(schema.values(), shard.files, strict=True)
        }
        return NpyShard(arrays)


class NpyShard:
    """The memory-mapped arrays of one shard."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays

    def gather(self, field: str, rows: np.ndarray, out: np.ndarray, slots: np.ndarray | slice) -> None:
        # Bound by memory: each row is read once and written once. benchmarks/end_to_end.py measures it as `presaved`.
        source = self._arrays[field]
        if isinstance(slots, slice):
            # mode="raise" would make numpy gather into a temporary first; the store has checked the rows.
            np.take(source, rows, axis=0, out=out[slots], mode="clip")
        elif source[0].nbytes <= SMALL_ROW_NBYTES:
            out[slots] = source[rows]
        else:
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
                out[slot] = source[row]

    def close(self) -> None:
        # A map closes with the last array that views it; dropping ours is all that is safe.
        self._arrays.clear()


def _file_name(field: Field, number: int) -> str:
    return f"{field.safe_name}-{number:05d}.npy"


def _header(field: Field, records: int) -> bytes:
    header = io.BytesIO()
    shape: tuple[int, ...] = (records, *field.shape)
    np.lib.format.write_array_header_2_0(header, {"descr": field.dtype, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _map(path: Path, field: Field, records: int) -> np.ndarray:
    # The header is compared, not parsed: the manifest says all that it may hold.
    header = _header(field, records)
    try:
        with path.open("rb") as file:
            found = file.read(len(header))
        nbytes = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error}); `etl verify` lists all that is damaged") from error
    if found != header or nbytes != len(header) + records * field.record_nbytes:
        raise StoreError(
            f"{path}: is not {np.dtype(field.dtype)} of shape {(records, *field.shape)}, as the manifest says; "
            "`etl verify` lists all that is damaged"
        )
    array = np.memmap(path, field.dtype, "r", offset=len(header), shape=(records, *field.shape))
    return np.asarray(array)
