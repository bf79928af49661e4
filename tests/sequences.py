"""Sequences of different lengths that tests share, and stages for them."""

from __future__ import annotations

import numpy as np

import etl
from etl.sources import Record

NOTHING = etl.Pipeline([])
INPUTS, CLASSES = 3, 2


def doubled(record: Record) -> Record:
    """A stage that keeps lengths."""
    return {**record, "features": record["features"] * 2}


def every_other_step(record: Record) -> Record:
    """A stage that changes them, and says so."""
    return {**record, "features": record["features"][::2]}


every_other_step.changes_length = True  # type: ignore[attr-defined]


def every_other_step_unsaid(record: Record) -> Record:
    """One that does not say so."""
    return every_other_step(record)


class Sequences(list[Record]):
    """Records that say how long they are, and that they vary."""

    ragged = frozenset({"features", "label"})

    @property
    def lengths(self) -> list[int]:
        return [len(record["features"]) for record in self]


def sequences(count: int = 40, per_step: bool = False, seed: int = 0) -> list[Record]:
    """The class is the sign of the last step; with `per_step` a label is given for each, of that step's sign."""
    random = np.random.default_rng(seed)
    records = []
    for length in random.integers(1, 20, count).tolist():
        features = random.standard_normal((length, INPUTS)).astype(np.float32)
        signs = (features[:, 0] > 0).astype(np.int64)
        records.append({"features": features, "label": signs if per_step else signs[-1]})
    return records
