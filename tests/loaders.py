"""Loaders that are not of etl, for tests of what accepts any iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RECORDS, BATCH, FEATURES = 10, 4, 3


class Numbers(Dataset[Any]):
    """Records that hold their number; as mappings if they are asked to. Record `bad` cannot be read."""

    def __init__(self, *, mappings: bool = False, bad: int | None = None) -> None:
        self.mappings = mappings
        self.bad = bad

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise OSError("the disk is gone")
        features = np.full(FEATURES, index, np.float32)
        return {"image": features, "label": index} if self.mappings else (features, index)


class Generated:
    """A class whose `__iter__` is a generator; it counts the epochs that are open. Batch `fails_at` raises an error."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.open = 0

    def __iter__(self) -> Iterator[Any]:
        self.open += 1
        try:
            for number, batch in enumerate(pairs()):
                if number == self.fails_at:
                    raise OSError("the disk is gone")
                yield batch
        finally:
            self.open -= 1


class Epochs(DistributedSampler[Any]):
    """A sampler that remembers each epoch that it is iterated in."""

    def __init__(self) -> None:
        super().__init__(Numbers(), num_replicas=1, rank=0, shuffle=True)
        self.iterated: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        self.iterated.append(self.epoch)
        return super().__iter__()


def pairs() -> list[Any]:
    """Return the batches of an epoch as pairs of arrays."""
    numbers = np.array_split(np.arange(RECORDS), range(BATCH, RECORDS, BATCH))
    return [(np.repeat(each[:, None], FEATURES, 1).astype(np.float32), each) for each in numbers]


def dataloader(workers: int = 0, **options: Any) -> DataLoader[Any]:
    """Return a DataLoader over `Numbers`, with its options."""
    data = {name: options.pop(name) for name in ("mappings", "bad") if name in options}
    return DataLoader(Numbers(**data), BATCH, num_workers=workers, **options)


# Each makes a loader of the same records in the same order.
LOADERS: dict[str, Callable[[], Any]] = {
    "DataLoader": dataloader,
    "DataLoader with workers": lambda: dataloader(workers=2),
    "DataLoader of mappings": lambda: dataloader(mappings=True),
    "list": pairs,
    "list of tensors": lambda: [[torch.from_numpy(part) for part in pair] for pair in pairs()],
    "generator function in a class": Generated,
}
