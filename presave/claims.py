"""Whether what a manifest says can be true at all: whoever iterates a store takes memory for as many records."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from presave.columns import Column, shard_columns

if TYPE_CHECKING:
    from presave.manifest import Manifest

LARGEST = 2**63 - 1
# HDF5 compresses a row, or several up to 64 KiB, at a time, and leaves at least 16 bytes of them.
COMPRESSING_FORMAT, COMPRESSED_NBYTES, MOST_COMPRESSION = "hdf5", 64 << 10, 4096
# What file systems that compress may hold beyond their size.
MOST_OF_A_DISK = 16


def check_claims(manifest: Manifest, folder: Path) -> None:
    """Raise `ValueError` where a shard cannot hold its records in its files, or the disk cannot hold these."""
    compresses = manifest.format == COMPRESSING_FORMAT
    ragged = [field.name for field in manifest.fields if field.is_ragged]
    # The bytes of a record and of an element are those of every shard, of which there may be many thousands.
    columns = shard_columns(manifest.schema, 1, dict.fromkeys(ragged, 0))
    record_nbytes = _least_nbytes(columns, compresses)
    unpacked_nbytes = _least_nbytes(columns, compresses=False)
    itemsizes = {field.name: field.numpy_dtype.itemsize for field in manifest.fields if field.is_ragged}
    for number, shard in enumerate(manifest.shards):
        needed = shard.records * record_nbytes
        needed += sum(count * itemsizes[name] for name, count in shard.elements.items())
        held = sum(file.nbytes for file in shard.files) * (MOST_COMPRESSION if compresses else 1)
        if needed > held:
            raise ValueError(
                f"shard {number} is said to hold {shard.records:,} records, which its files have no room for"
            )
    if manifest.records * unpacked_nbytes > LARGEST:  # of which numpy makes no array
        raise ValueError(f"it is said to hold records of {unpacked_nbytes:,} bytes each")
    room = shutil.disk_usage(folder).total  # 0 where it is not known
    if max(manifest.records, manifest.nbytes) > (room * MOST_OF_A_DISK or LARGEST):
        raise ValueError(f"it is said to hold {manifest.nbytes:,} bytes, on a disk of {room:,}")


def _least_nbytes(columns: Iterable[Column], compresses: bool) -> int:
    return sum(
        column.rows * (min(column.row_nbytes, COMPRESSED_NBYTES) if compresses else column.row_nbytes)
        for column in columns
    )
