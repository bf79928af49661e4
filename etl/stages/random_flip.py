"""Stage "random_flip": a random left-right flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from presave import Record


@dataclass(frozen=True)
class RandomFlip:
    """Flip `features` of shape `(height, width, ...)` left to right at random, as a view.

    Put this stage before "channels_first". Features of shape `(channels, height, width)`, such as torchvision's
    `ToTensor` makes, would be turned upside down: no shape tells them from others for certain. The label stays as it
    is. Flip boxes together with their image in a stage of your own.

    Attributes
    ----------
    probability : float
        Probability of a flip, from 0 to 1.

    Raises
    ------
    ValueError
        If the probability is out of range, or a label is an array as large as the image, such as a mask.
    """

    probability: float = 0.5
    name: ClassVar[str] = "random_flip"
    fingerprint_kind: ClassVar[str] = "etl.stages.random_flip.RandomFlip"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be from 0 to 1, not {self.probability}")

    def __call__(self, record: Record, random: np.random.Generator) -> Record:
        refuse_mask(record)
        if random.random() >= self.probability:
            return record
        return {**record, "features": record["features"][:, ::-1]}


def refuse_mask(record: Record) -> None:
    """Raise `ValueError` if a label is an array as large as the image, which it would no longer belong to."""
    labels = record.get("label")
    for label in labels if isinstance(labels, tuple) else (labels,):
        shape = getattr(label, "shape", ())
        if len(shape) > 1 and shape[:2] == record["features"].shape[:2]:
            raise ValueError(
                f"label has shape {tuple(shape)}, as large as the image, and would stay as it is; change both in a "
                "stage of your own"
            )
