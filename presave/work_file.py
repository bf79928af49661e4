"""An object that other processes, here or on other machines, read from a folder that they share."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from presave.atomic import write_atomically
from presave.checksum import checksum_bytes
from presave.disk_errors import disk_errors
from presave.errors import StoreError

WORK_NAME = "work.pickle"


@dataclass(frozen=True)
class WorkFile:
    """Where the object is, and the checksum of its pickle: small, whatever the object's size, and so sent often."""

    path: Path
    xxh3_128: str

    def load(self) -> Any:
        """The object, read once a process. Raises `StoreError` where the file is not the one that was saved."""
        return _load(self)


def save_work(work: Any, folder: Path) -> WorkFile:
    """Pickle `work` into `folder`; raises `StoreError` where that cannot be done."""
    try:
        data = cloudpickle.dumps(work)
    except Exception as error:
        raise StoreError(
            f"the records cannot be sent to other processes ({error}); leave open files, locks and the like out of them"
        ) from error
    path = folder.absolute() / WORK_NAME
    with disk_errors(path, len(data)):
        write_atomically(path, data)
    return WorkFile(path, checksum_bytes(data))


@lru_cache(maxsize=1)
def _load(file: WorkFile) -> Any:
    data = file.path.read_bytes()
    if checksum_bytes(data) != file.xxh3_128:
        raise StoreError(f"{file.path} was changed while the store was written; write again")
    return pickle.loads(data)  # noqa: S301 - the very bytes that this write has made
