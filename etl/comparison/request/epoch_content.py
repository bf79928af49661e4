"""The content of an epoch, for a comparison with that of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etl.measuring.arrays import ArraySpec
from etl.measuring.values import JsonValues


@dataclass(frozen=True)
class EpochContent(JsonValues):
    """The content of one epoch of a loader.

    Attributes
    ----------
    digests : list of text
        `digest_of` each batch.
    records : list of text
        `record_digests` of all records, in the order in which they came.
    layouts : list of ArraySpec
        `layout_of` the batches, merged: the dtypes and shapes of a record.
    batch_sizes : list of int
        Records of each batch.
    signatures : text
        A .npz with `signatures`, `signatures_of` all records, and, unless they have none, `labels`, `labels_of` them.
    """

    digests: list[str]
    records: list[str]
    layouts: list[ArraySpec]
    batch_sizes: list[int]
    signatures: str

    @property
    def samples(self) -> int:
        """Records of the epoch."""
        return sum(self.batch_sizes)

    @property
    def has_one_layout(self) -> bool:
        """True if all records have the same shapes."""
        return all(-1 not in shape for _, shape in self.layouts)


@dataclass(frozen=True)
class Signatures:
    """Signatures and labels of the records of an epoch, in the order in which they came."""

    values: np.ndarray
    labels: np.ndarray | None

    @classmethod
    def load(cls, path: str) -> Signatures:
        """Return what `save` wrote."""
        with np.load(path) as arrays:
            return cls(arrays["signatures"], arrays.get("labels"))

    def save(self, path: str) -> None:
        """Write a .npz file."""
        if self.labels is None:
            np.savez(path, signatures=self.values)
        else:
            np.savez(path, signatures=self.values, labels=self.labels)


def may_hold(batches: int, records: int, batch_size: int, workers: int) -> bool:
    """Return True if `batches` can hold `records`: each worker may end with an incomplete batch, or not."""
    return records // batch_size - (workers - 1) <= batches <= -(-records // batch_size) + workers - 1
