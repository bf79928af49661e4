"""Stage "colour_jitter": brightness, contrast and saturation changed at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from presave import Record

# The weights of red, green and blue in brightness (ITU-R BT.601, which Pillow and torchvision use).
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True)
class ColourJitter:
    """Multiply brightness, contrast and saturation, in this order, by random factors.

    `features` are uint8 of shape `(height, width, 3)`, before "channels_first". Each factor is drawn uniformly from
    `1 - strength` to `1 + strength`.

    Attributes
    ----------
    brightness, contrast, saturation : float
        Strengths from 0, which changes nothing, to 1.

    Raises
    ------
    ValueError
        If a strength is out of range, or features have another dtype or shape.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    name: ClassVar[str] = "colour_jitter"
    fingerprint_kind: ClassVar[str] = "etl.stages.colour_jitter.ColourJitter"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not all(0 <= strength <= 1 for strength in (self.brightness, self.contrast, self.saturation)):
            raise ValueError(
                f"strengths must be from 0 to 1, not brightness {self.brightness}, contrast {self.contrast}, "
                f"saturation {self.saturation}"
            )

    def __call__(self, record: Record, random: np.random.Generator) -> Record:
        pixels = record["features"]
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != len(LUMA):
            raise ValueError(f"features are {pixels.dtype} of shape {pixels.shape}, not uint8 of (height, width, 3)")
        strengths = np.array([self.brightness, self.contrast, self.saturation])
        brightness, contrast, saturation = (1 + strengths * random.uniform(-1, 1, 3)).astype(np.float32)
        values = pixels.astype(np.float32)
        values *= brightness
        mean = np.float32((values.mean(axis=(0, 1), dtype=np.float64) * LUMA).sum())
        values += (mean - values) * (1 - contrast)
        # Not a matrix product, which would wake BLAS's threads for each image.
        grey = values[:, :, :1] * LUMA[0] + values[:, :, 1:2] * LUMA[1] + values[:, :, 2:] * LUMA[2]
        values += (grey - values) * (1 - saturation)
        np.rint(values, out=values)
        return {**record, "features": np.clip(values, 0, 255, out=values).astype(np.uint8)}
