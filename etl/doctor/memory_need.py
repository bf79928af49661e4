"""The memory that a training needs, and how much to allow it."""

from __future__ import annotations

from dataclasses import dataclass

from etl.measuring.process_tree import children_nbytes, peak_resident_nbytes
from etl.runtime.heap_policy import data_nbytes
from etl.runtime.resources import available_nbytes

# Allowed above what was seen: batches of other sizes, checkpoints, and what fragmentation adds.
MARGIN = 0.25


@dataclass(frozen=True)
class MemoryNeed:
    """The memory of a training.

    Attributes
    ----------
    peak_nbytes : int
        Bytes of physical memory that this process had at its peak, and its child processes while they loaded.
    data_nbytes : int
        Bytes of heap, stacks and private mappings of this process, touched or not: what `HeapPolicy("limit:...")`
        limits.
    available_nbytes : int
        Bytes that this process could have had besides.
    """

    peak_nbytes: int
    data_nbytes: int
    available_nbytes: int

    @property
    def allow_nbytes(self) -> int:
        """Bytes to allow the training: its peak and a quarter more."""
        return round(self.peak_nbytes * (1 + MARGIN))

    @property
    def is_tight(self) -> bool:
        """True if the machine or container has less than that."""
        return self.allow_nbytes > self.peak_nbytes + self.available_nbytes

    def __str__(self) -> str:
        limit = _gigabytes(round(self.data_nbytes * (1 + MARGIN))).replace(" ", "")
        return (
            f"{_gigabytes(self.peak_nbytes)} at the peak, and {_gigabytes(self.available_nbytes)} are left. Allow it "
            f"{_gigabytes(self.allow_nbytes)}, as the limit of a container; or use HeapPolicy('limit:{limit}') of "
            "etl.runtime, which turns growth by more than a quarter into a MemoryError"
        )


def look_at_memory() -> MemoryNeed:
    """Return the memory that this process and its children have needed so far. Call it while they load."""
    return MemoryNeed(peak_resident_nbytes() + children_nbytes(), data_nbytes(), available_nbytes())


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB"
