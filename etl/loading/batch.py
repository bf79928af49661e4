"""A batch, as iterators yield it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etl.stages.fields import unflatten


@dataclass(frozen=True, eq=False)
class Batch:
    """The records of one training step; `features, labels = batch` unpacks them.

    Iterators yield numpy arrays; `Backend.put` returns tensors. The first axis of every array counts records.

    Attributes
    ----------
    features : array or tuple of arrays
        The inputs; a tuple if records have several.
    labels : array, tuple of arrays or None
        The labels; None if records have none.
    features_mask, labels_mask : array of shape (batch, steps), tuple of these or None
        1 for a time step of data and 0 for padding. None if nothing is padded; a tuple has None for each array that is
        not padded.
    repeated : bool array of shape (batch,) or None
        True for a record that is repeated only so that all ranks get the same number of batches (see
        `BatchIterator.shard`). None if no record of the batch is repeated.
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
        """Return the number of records."""
        return len(self.features[0] if isinstance(self.features, tuple) else self.features)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[Any]:
        """Yield every array of the batch, in the order of its fields."""
        for part in (self.features, self.labels, self.features_mask, self.labels_mask, self.repeated):
            if isinstance(part, tuple):
                yield from (array for array in part if array is not None)
            elif part is not None:
                yield part


def make_batch(arrays: Mapping[str, Any], repeated: Any = None) -> Batch:
    """Return a batch of `arrays`, which are named as `etl.stages.fields.flatten` names them.

    `labels` is None if there is no label.
    """
    record = arrays if "features" in arrays and arrays.keys() <= {"features", "label"} else unflatten(arrays)
    return Batch(
        record["features"], record.get("label"), record.get("features_mask"), record.get("labels_mask"), repeated
    )
