"""The records of a comparison: some of a source, or of one that only user loaders can read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.sources import ImageFolder
from etl.sources.record import Record, describe_record, source_name
from presave.thread_safety import is_thread_safe


class Subset:
    """Random records of a source, in the order of the source: `count`, or all if the source has no more.

    It has the attributes `classes`, `ragged`, `lengths` and `describe` if the source has them.
    """

    def __init__(self, source: Any, count: int, seed: int) -> None:
        self.source = source
        self.name = source_name(source)
        self.thread_safe = is_thread_safe(source)
        every: np.ndarray = np.arange(len(source))
        if count < len(every):
            every = np.random.default_rng(seed).permutation(len(every))
            if isinstance(source, ImageFolder):
                every = _one_of_each_first(every, source.labels)
        self.indices = np.sort(every[:count])
        for name in ("classes", "ragged"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Record:
        """Return record `index` of the subset."""
        record: Record = self.source[int(self.indices[index])]
        return record

    def __getattr__(self, name: str) -> Any:
        # If the source has no `lengths`, this subset must not have them either.
        if name == "lengths" and "source" in self.__dict__:
            lengths = self.source.lengths
            if isinstance(lengths, dict):
                return {field: np.asarray(values)[self.indices] for field, values in lengths.items()}
            return np.asarray(lengths)[self.indices]
        raise AttributeError(name)

    def of(self, records: Any) -> Any:
        """Return the same subset of other `records`; all of them as they are if nothing is left out."""
        return records if len(self) == len(records) else _Chosen(records, self.indices)

    def describe(self, index: int) -> str:
        """Return the description of record `index` of the subset for messages."""
        number = int(self.indices[index])
        found = describe_record(self.source, number)
        return f"record {number}, {found}" if found else f"record {number}"


def _one_of_each_first(order: NDArray[np.int64], labels: np.ndarray) -> NDArray[np.int64]:
    """Return `order` with one record of each class first: loaders number the classes of the folders that they find."""
    _, firsts = np.unique(labels[order], return_index=True)
    return np.concatenate([order[firsts], np.delete(order, firsts)])


class _Chosen:
    """Some records of a user's data set, with whatever else it has."""

    def __init__(self, dataset: Any, indices: NDArray[np.int64]) -> None:
        self._dataset = dataset
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[int(self._indices[index])]

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__" and "_dataset" in self.__dict__:
            # A torch DataLoader asks for all items of a batch at once if the data set has this method.
            get_items = self._dataset.__getitems__
            return get_items and (lambda indices: get_items(self._indices[indices].tolist()))
        if name.startswith("_"):  # also while it is unpickled in a worker, when there is no data set yet
            raise AttributeError(name)
        return getattr(self._dataset, name)


class UserLoaderSource:
    """A path whose records only user loaders can read. Their `count` is 0 until a loader has been tried."""

    is_readable = False

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        """Raise `ValueError`: there is nothing that could read a record."""
        raise ValueError(f"{self.path} is not a source that is known here; the loader has to read its files itself")
