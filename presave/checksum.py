"""Checksums of files: XXH3 with 128 bits, which runs at the speed of memory and finds any accidental change."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import xxhash

BLOCK_NBYTES = 1 << 20


class ChecksumWriter:
    """Writes to `file` and keeps the checksum of all that was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._state = xxhash.xxh3_128()
        self.nbytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write `data`, any object with the buffer interface; the number of bytes written."""
        self._state.update(data)
        self._file.write(data)
        count = memoryview(data).nbytes
        self.nbytes += count
        return count

    def hexdigest(self) -> str:
        """The checksum so far, 32 hexadecimal digits."""
        return self._state.hexdigest()


def checksum_bytes(data: bytes) -> str:
    """The checksum of `data`, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def checksum_file(path: Path) -> str:
    """The checksum of the whole file, read in blocks of 1 MiB."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK_NBYTES):
            state.update(block)
    return state.hexdigest()
