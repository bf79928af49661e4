"""What an iterator yields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch: `features` and `labels`, each an array whose first axis counts records, or a tuple of such arrays.

    Masks are 1 where a time step is data and 0 where it is padding, shape `(batch, steps)`; None where nothing is
    padded, and in a tuple of masks for an input that is not. `repeated` is True for each record that is here only so
    that all ranks get the same number of batches (see `BatchIterator.shard`), bool of shape `(batch,)`; None if there
    is none. From an iterator the arrays are numpy, from `Backend.put` tensors. `features, labels = batch` unpacks.
    """

    features: Any
    labels: Any
    features_mask: Any = None
    labels_mask: Any = None
    repeated: Any = None

    def __iter__(self) -> Iterator[Any]:
        yield self.features
        yield self.labels

    def __len__(self) -> int:
        """Number of records."""
        return len(self.features[0] if isinstance(self.features, tuple) else self.features)

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[Any]:
        """Every array of the batch, in the order of its fields."""
        for part in (self.features, self.labels, self.features_mask, self.labels_mask, self.repeated):
            if isinstance(part, tuple):
                yield from (array for array in part if array is not None)
            elif part is not None:
                yield part
