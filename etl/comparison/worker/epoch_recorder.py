"""The content of an epoch, recorded batch by batch for a comparison with other epochs."""

from __future__ import annotations

from typing import Any

import numpy as np

from etl.comparison.request.epoch_content import EpochContent, Signatures
from etl.measuring.arrays import ArraySpec, digest_of, layout_of, merge_layouts, record_digests
from etl.measuring.signatures import join_signatures, labels_of, signatures_of
from etl.measuring.structure import record_count


class EpochRecorder:
    """Records the content of an epoch."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.records: list[str] = []
        self._batch_sizes: list[int] = []
        self._layouts: list[ArraySpec] | None = None
        self._signatures: list[np.ndarray] = []
        self._labels: list[np.ndarray | None] = []

    def add(self, batch: Any) -> None:
        self.digests.append(digest_of(batch))
        self._batch_sizes.append(record_count(batch))
        self.records += record_digests(batch)
        layouts = layout_of(batch)
        self._layouts = layouts if self._layouts is None else merge_layouts(self._layouts, layouts)
        self._signatures.append(signatures_of(batch))
        self._labels.append(labels_of(batch))

    def finish(self, path: str) -> EpochContent:
        """Return the content, with the signatures and labels of the records in a new .npz file at `path`."""
        labels = [each for each in self._labels if each is not None]
        has_labels = len(labels) == len(self._labels)
        Signatures(join_signatures(self._signatures), np.concatenate(labels) if has_labels else None).save(path)
        return EpochContent(self.digests, self.records, self._layouts or [], self._batch_sizes, path)
