"""Creating HDF5 files so that every disk error is reported.

HDF5's own drivers do not report every failed write, and some failed writes crash the process. So HDF5 writes through a
Python file object, which hides errors from HDF5. The first error is raised at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

# All objects are aligned to a cache line, so that mapped arrays are aligned for every dtype.
ALIGNED_FROM_NBYTES, ALIGNMENT_NBYTES = 1, 64


@contextmanager
def create_file(path: Path) -> Iterator[h5py.File]:
    """Open a new, empty file at `path` for the block, in the latest file format and without timestamps.

    Raises `OSError` at the end if any part of the file could not be written.
    """
    with path.open("w+b", buffering=0) as opened:
        disk = _Disk(opened.fileno())
        with _create(disk, path) as file:
            yield file
        if disk.error is not None:
            raise OSError(disk.error.errno, disk.error.strerror, str(path)) from disk.error


class _Disk:
    """The file object that h5py writes to. Its methods raise no `OSError`, but keep the first one as `error`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._place = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            self._place = os.lseek(self._descriptor, offset, whence)
        except OSError as error:
            self.error = self.error or error
        return self._place

    def tell(self) -> int:
        return self._place

    def write(self, data: memoryview) -> int:
        left = memoryview(data).cast("B")
        try:
            while len(left) and self.error is None:
                count = os.pwrite(self._descriptor, left, self._place)
                self._place += count
                left = left[count:]
        except OSError as error:
            self.error = error
        return memoryview(data).nbytes

    def readinto(self, buffer: memoryview) -> int:
        left = memoryview(buffer).cast("B")
        try:
            while len(left) and (count := os.preadv(self._descriptor, [left], self._place)):
                self._place += count
                left = left[count:]
        except OSError as error:
            self.error = self.error or error
        return memoryview(buffer).nbytes

    def truncate(self, nbytes: int) -> int:
        try:
            os.ftruncate(self._descriptor, nbytes)
        except OSError as error:
            self.error = self.error or error
        return nbytes

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def _create(disk: _Disk, path: Path) -> h5py.File:
    # By default the root group stores its creation time, and h5py.File has no argument to prevent that.
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, disk)
    access.set_alignment(ALIGNED_FROM_NBYTES, ALIGNMENT_NBYTES)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fcpl=creation, fapl=access))
