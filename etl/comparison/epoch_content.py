"""The content of an epoch, for comparing it with the epochs of other loaders. Needs numpy and xxhash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etl.measuring.arrays import Layout, digest_of, layout_of, merge_layouts, record_digests
from etl.measuring.values import JsonValues


@dataclass(frozen=True)
class EpochContent(JsonValues):
    """The content of an epoch.

    Attributes
    ----------
    digests, records : list of str
        Digests of each batch and of each record, in the order of the epoch.
    layouts : list of Layout
        Dtype and shape of each array of a record.
    """

    digests: list[str]
    records: list[str]
    layouts: list[Layout]

    @property
    def batches(self) -> int:
        """Batches of the epoch."""
        return len(self.digests)

    @property
    def samples(self) -> int:
        """Records of the epoch."""
        return len(self.records)


class EpochRecorder:
    """Records the content of an epoch, batch by batch."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.records: list[str] = []
        self._layouts: list[Layout] | None = None

    def add(self, batch: Any) -> None:
        """Add the next batch."""
        self.digests.append(digest_of(batch))
        self.records += record_digests(batch)
        layouts = layout_of(batch)
        self._layouts = layouts if self._layouts is None else merge_layouts(self._layouts, layouts)

    def finish(self, arrays_file: str) -> EpochContent:
        return EpochContent(self.digests, self.records, self._layouts or [])
