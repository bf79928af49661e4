"""Records that only one thread may read at a time: those that share an open file, a connection or a buffer."""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType
from typing import Any

import numpy as np

IN_MEMORY = (list, tuple, np.ndarray)
# What a copy shares with the original, besides arrays: classes and functions, and containers longer than this.
NEVER_COPIED = (type, FunctionType)
CONTAINERS = (list, tuple, dict, set, bytes, bytearray)
MAX_COPIED_LENGTH = 64


def is_torch_subset(records: Any) -> bool:
    """Return True if `records` is a `Subset` of torch, as `random_split` makes them, but none of a subclass."""
    return type(records) is getattr(sys.modules.get("torch.utils.data"), "Subset", None)


def chosen_from(dataset: Any) -> Any:
    """Return the data set that a `Subset` of torch chooses from; any other itself."""
    while is_torch_subset(dataset):
        dataset = dataset.dataset
    return dataset


def is_thread_safe(records: Any) -> bool:
    """Return True if several threads may call `records[index]` at once, and a record outlasts the next call.

    Lists, tuples and arrays are safe, and a `Subset` of torch if what it chooses from is. Any other class says so with
    `thread_safe = True`, but not for a subclass that reads in its own way.
    """
    declared = getattr(records, "thread_safe", None)
    if declared is None:
        if is_torch_subset(records):
            return is_thread_safe(records.dataset)
        return isinstance(records, IN_MEMORY)
    if "thread_safe" not in getattr(records, "__dict__", ()):
        for each in type(records).__mro__:
            if "thread_safe" in vars(each):
                break
            if "__getitem__" in vars(each):
                return False
    return bool(declared)


def unopened(records: Any) -> Any:
    """Return a copy of `records` to read a few from, so that `records` itself opens no file or connection yet.

    What it opened could not be sent to other processes, would be shared by forks of this one, and may belong to the
    thread that opened it. The copy shares arrays and long containers with `records`. Records that are safe, or cannot
    be pickled, are returned themselves.
    """
    if is_thread_safe(records):
        return records
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(records)
        file.seek(0)
        return _Unpickler(file, pickler.shared).load()
    except Exception:  # noqa: BLE001 - the class is the user's
        return records


class _Pickler(pickle.Pickler):
    """Pickles small objects, and keeps arrays, long containers, classes and functions in `shared`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        is_long = isinstance(value, CONTAINERS) and len(value) > MAX_COPIED_LENGTH
        if not (is_long or isinstance(value, NEVER_COPIED) or hasattr(type(value), "nbytes")):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, number: Any) -> Any:
        return self._shared[number]
