"""Safe decompression of HDF5 chunks: a chunk's size is checked before it is unpacked.

A malicious file can unpack to a million times its size, because HDF5 gives a filter all the memory that it asks for and
allows any number of filters in a row.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import h5py
import numpy as np
from h5py._objects import phil

DEFLATE, LZF, LZ4, BLOSC, BLOSC2, ZSTD = 1, 32000, 32004, 32001, 32026, 32015
# A larger chunk may hold only one row. Chunks that presave writes have at most 64 KiB, or one row.
MAX_CHUNK_NBYTES = 64 << 20
# Data that compress better than MAX_COMPRESSION, or in rows larger than MAX_ROW_NBYTES better than
# MAX_ROW_COMPRESSION, were made to fill memory.
MAX_COMPRESSION = 1 << 16
MAX_ROW_NBYTES, MAX_ROW_COMPRESSION = 256 << 20, 100
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def validate_chunks(data: h5py.Dataset, file_nbytes: int) -> None:
    """Raise `ValueError` if presave writes no such data set, or it does not fit into a file of `file_nbytes` bytes."""
    if data.chunks is None:
        if data.id.get_offset() is None and data.nbytes > MAX_CHUNK_NBYTES:
            raise ValueError(f"its {data.nbytes:,} bytes are not in the file")
        return
    row_nbytes = data.dtype.itemsize * math.prod(data.shape[1:])
    chunk_nbytes = data.dtype.itemsize * math.prod(data.chunks)
    if chunk_nbytes > max(MAX_CHUNK_NBYTES, row_nbytes):
        raise ValueError(f"its chunks have {chunk_nbytes:,} bytes")
    if data.nbytes > max(MAX_CHUNK_NBYTES, file_nbytes * MAX_COMPRESSION):
        raise ValueError(f"it claims {data.nbytes:,} bytes in a file of {file_nbytes:,}")
    if row_nbytes > MAX_ROW_NBYTES and data.nbytes > file_nbytes * MAX_ROW_COMPRESSION:
        raise ValueError(f"its rows claim {row_nbytes:,} bytes each in a file of {file_nbytes:,}")
    filters = filter_ids(data)
    if filters and (len(filters) > 1 or filters[0] not in DECLARED_NBYTES or data.chunks[1:] != data.shape[1:]):
        raise ValueError(f"its filters ({', '.join(map(str, filters))}) or chunks are not those that presave writes")


def filter_ids(data: h5py.Dataset) -> list[int]:
    """Return the registered HDF5 identifiers of the data set's filters."""
    creation = data.id.get_create_plist()
    return [creation.get_filter(place)[0] for place in range(creation.get_nfilters())]


def read_chunk(data: h5py.Dataset, number: int, buffer: np.ndarray) -> None:
    """Unpack one chunk into `buffer`, which has a chunk's shape and the data set's dtype.

    Raises `OSError` or `ValueError` if the chunk is damaged or does not unpack to the size of `buffer`.
    """
    offset = (number * data.chunks[0], *(0 for _ in data.shape[1:]))
    with phil:  # h5py takes its lock for everything but this, and HDF5 fails if another thread opens or closes a file
        mask, stored = data.id.read_direct_chunk(offset)
    (kind,) = filter_ids(data)
    if mask:  # set if HDF5 stored the chunk unfiltered, because compression would have made it larger
        found: int | None = len(stored)
    elif kind == DEFLATE:
        stored = _inflate(stored, buffer.nbytes)
        found = len(stored)
    else:
        found = DECLARED_NBYTES[kind](stored)
    if found is not None and found != buffer.nbytes:
        raise ValueError(f"chunk {number} of {data.name} unpacks to {found:,} bytes, not {buffer.nbytes:,}")
    if mask or kind == DEFLATE:
        buffer.reshape(-1).view(np.uint8)[:] = np.frombuffer(stored, np.uint8)
        return
    first, last = offset[0], min(offset[0] + len(buffer), len(data))
    data.read_direct(buffer, np.s_[first:last], np.s_[: last - first])


def _inflate(stored: bytes, nbytes: int) -> bytes:
    # HDF5 itself would unpack without a limit.
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(stored, nbytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) == nbytes and not inflating.eof:
        raise ValueError("a chunk is cut off")
    return found


def _zstd_nbytes(stored: bytes) -> int:
    """Return the content size in the header of a zstd frame (RFC 8878, 3.1.1.1), or -1 if there is none."""
    if not stored.startswith(ZSTD_MAGIC) or len(stored) < 5:
        return -1
    descriptor = stored[4]
    is_single = descriptor >> 5 & 1
    start = 6 - is_single + (0, 1, 2, 4)[descriptor & 3]
    length = (is_single, 2, 4, 8)[descriptor >> 6]
    found = int.from_bytes(stored[start : start + length], "little") + 256 * (length == 2)
    return found if length else -1


# By filter: a function that returns the unpacked size that a chunk declares, which the filter never exceeds, or None if
# chunks declare none. LZF is safe without: it unpacks 3 bytes to at most 264. `_inflate` limits DEFLATE.
DECLARED_NBYTES: dict[int, Callable[[bytes], int | None]] = {
    DEFLATE: lambda _stored: None,
    LZF: lambda _stored: None,
    LZ4: lambda stored: int.from_bytes(stored[:8], "big"),
    BLOSC: lambda stored: int.from_bytes(stored[4:8], "little"),
    BLOSC2: lambda stored: int.from_bytes(stored[30:38], "big"),
    ZSTD: _zstd_nbytes,
}
