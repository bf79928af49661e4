"""Data sets that only one thread may read at a time: their items share a file position, a buffer or a connection."""

from __future__ import annotations

import sqlite3
import tarfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import presave
from tests import tar_files

COUNT, SIDE = 60, 16


def pixels(index: int) -> np.ndarray:
    """Return the features of record `index`."""
    return np.full((SIDE, SIDE), index, np.uint8)


class Shared:
    """Pairs of pixels and a number; remembers the threads that read."""

    def __init__(self, folder: Path) -> None:
        self.location = folder / f"{type(self).__name__}.data"
        self.readers: list[int] = []
        self.prepare()

    def prepare(self) -> None:
        """Write the files and open what is shared."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.readers.append(threading.get_ident())
        return self.read(index), index

    def read(self, index: int) -> np.ndarray:
        raise NotImplementedError

    def __del__(self) -> None:
        for value in vars(self).values():
            try:  # noqa: SIM105 - at the end of the interpreter, contextlib may be gone
                getattr(value, "close", list)()
            except sqlite3.ProgrammingError:  # of another thread
                pass


class Position(Shared):
    """An open file that is sought and read."""

    def prepare(self) -> None:
        np.stack([pixels(index) for index in range(COUNT)]).tofile(self.location)
        self.file = self.location.open("rb")

    def read(self, index: int) -> np.ndarray:
        self.file.seek(index * SIDE * SIDE)
        time.sleep(0)
        return np.array(np.frombuffer(self.file.read(SIDE * SIDE), np.uint8).reshape(SIDE, SIDE))


class OpenTar(Shared):
    """An open tar file."""

    def prepare(self) -> None:
        tar_files.write(self.location, [(str(index), pixels(index).tobytes()) for index in range(COUNT)])
        self.tar = tarfile.open(self.location)  # noqa: SIM115 - it stays open, as in users' data sets
        self.members = self.tar.getmembers()

    def read(self, index: int) -> np.ndarray:
        file = self.tar.extractfile(self.members[index])
        assert file is not None
        return np.array(np.frombuffer(file.read(), np.uint8).reshape(SIDE, SIDE))


class Buffer(Shared):
    """One buffer for all items."""

    def prepare(self) -> None:
        self.buffer = np.empty((SIDE, SIDE), np.uint8)

    def read(self, index: int) -> np.ndarray:
        self.buffer[:] = pixels(index)
        time.sleep(0)
        return self.buffer


class OpenZip(Shared):
    """An open zip file, which locks itself."""

    def prepare(self) -> None:
        with zipfile.ZipFile(self.location, "w") as file:
            for index in range(COUNT):
                file.writestr(str(index), pixels(index).tobytes())
        self.zip = zipfile.ZipFile(self.location)

    def read(self, index: int) -> np.ndarray:
        return np.array(np.frombuffer(self.zip.read(str(index)), np.uint8).reshape(SIDE, SIDE))


class OpenHdf5(Shared):
    """An open HDF5 file, whose library has one lock."""

    def prepare(self) -> None:
        with h5py.File(self.location, "w") as file:
            file["x"] = np.stack([pixels(index) for index in range(COUNT)])
        self.hdf5 = h5py.File(self.location)

    def read(self, index: int) -> np.ndarray:
        found: np.ndarray = self.hdf5["x"][index]
        return found


class Connection(Shared):
    """A connection to a database, opened when the first record is read; it belongs to the thread that opened it."""

    opens_early = False
    checks_thread = True

    def prepare(self) -> None:
        connection = sqlite3.connect(self.location)
        connection.execute("create table if not exists records (number integer primary key, pixels blob)")
        rows = [(index, pixels(index).tobytes()) for index in range(COUNT)]
        connection.executemany("insert or replace into records values (?, ?)", rows)
        connection.commit()
        connection.close()
        self.connection = self.connect() if self.opens_early else None

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.location, check_same_thread=self.checks_thread)

    def read(self, index: int) -> np.ndarray:
        if self.connection is None:
            self.connection = self.connect()
        (found,) = self.connection.execute("select pixels from records where number = ?", (index,)).fetchone()
        return np.array(np.frombuffer(found, np.uint8).reshape(SIDE, SIDE))


class EarlyConnection(Connection):
    """A connection of the thread that made the data set."""

    opens_early = True


class AnyThreadsConnection(EarlyConnection):
    """A connection that any thread may use."""

    checks_thread = False


COLLIDING = (Position, OpenTar, Buffer)
SHARED = (*COLLIDING, OpenZip, OpenHdf5, Connection, AnyThreadsConnection)


class Records:
    """The items of a data set as records."""

    def __init__(self, dataset: Shared) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> presave.Record:
        image, label = self.dataset[index]
        return {"features": image, "label": label}
