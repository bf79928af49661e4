"""Batches made of several. Loads torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from etl.doctor.setup import as_batch, copy_batch
from etl.loading.batch import Batch


class Rebatched:
    """Batches that are `factor` of another iterator's one after the other; those left at the end make the last."""

    def __init__(self, batches: Iterable[Any], factor: int) -> None:
        self._batches = batches
        self.factor = factor

    def __len__(self) -> int:
        return -(-len(self._batches) // self.factor)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        waiting: list[Batch] = []
        for item in self._batches:
            waiting.append(copy_batch(as_batch(item)))  # iterators may reuse its memory for the next
            if len(waiting) == self.factor:
                yield joined(waiting)
                waiting = []
        if waiting:
            yield joined(waiting)


def repeated(batch: Batch, times: int) -> Batch:
    """`batch` so many times."""
    return joined([batch] * times)


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch of the records of all, without the mark of repeated ones."""
    return Batch(
        *(
            _joined([getattr(batch, name) for batch in batches])
            for name in ("features", "labels", "features_mask", "labels_mask")
        )
    )


def _joined(parts: list[Any]) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], tuple):
        return tuple(_joined([part[index] for part in parts]) for index in range(len(parts[0])))
    return torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts)
