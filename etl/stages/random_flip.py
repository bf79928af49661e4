"""Stage "random_flip": a random left-right flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from presave import Record


@dataclass(frozen=True)
class RandomFlip:
    """Flip `features` of shape `(height, width, ...)` left to right at random, as a view.

    Put this stage before "channels_first".

    Attributes
    ----------
    probability : float
        Probability of a flip, from 0 to 1.
    """

    probability: float = 0.5
    name: ClassVar[str] = "random_flip"
    fingerprint_kind: ClassVar[str] = "etl.stages.random_flip.RandomFlip"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be from 0 to 1, not {self.probability}")

    def __call__(self, record: Record, random: np.random.Generator) -> Record:
        if random.random() >= self.probability:
            return record
        return {**record, "features": record["features"][:, ::-1]}
