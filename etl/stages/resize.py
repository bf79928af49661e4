"""Stage "resize": pixels to a fixed size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from etl.images import pillow, turbo
from etl.stages.collate import write_value
from etl.stages.stage import ADDED_LATER
from presave import Record

RESIZERS = ("pillow", "opencv")


@dataclass(frozen=True)
class Resize:
    """Resize `features`, uint8 of shape `(rows, columns, 3)` or `(rows, columns)`; the aspect ratio is not kept.

    Attributes
    ----------
    height, width : int
        New size in pixels.
    resizer : str
        "pillow" or "opencv", both bilinear. When an image shrinks, "pillow" uses every source pixel; "opencv" uses the
        four nearest, which is faster and aliases.

    Raises
    ------
    ValueError
        If the size or the resizer is invalid.
    ImportError
        If OpenCV is not installed, for "opencv".
    """

    height: int
    width: int
    resizer: str = field(default="pillow", metadata=ADDED_LATER)
    name: ClassVar[str] = "resize"
    fingerprint_kind: ClassVar[str] = "etl.stages.resize.Resize"
    fixes_size: ClassVar[bool] = True
    written_dtype: ClassVar[np.dtype] = np.dtype(np.uint8)

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise ValueError(f"an image cannot be resized to {self.height} x {self.width}; both must be at least 1")
        if self.resizer not in RESIZERS:
            raise ValueError(f"unknown resizer {self.resizer!r}; known: {', '.join(RESIZERS)}")

    def __call__(self, record: Record) -> Record:
        return {**record, "features": self._resize(record["features"], None)}

    def write_into(self, features: Any, out: np.ndarray) -> None:
        """Resize `features` into `out`, uint8 of the new shape."""
        resized = self._resize(features, out)
        if resized is not out:
            write_value("features", resized, out)

    def _resize(self, features: Any, out: np.ndarray | None) -> np.ndarray:
        if isinstance(features, Image.Image):
            is_done = features.size == (self.width, self.height)
            return np.asarray(features) if is_done else pillow.resize(features, self.height, self.width)
        if features.shape[:2] == (self.height, self.width):
            pixels: NDArray[np.uint8] = features
            return pixels
        if self.resizer == "opencv":
            return turbo.resize(features, self.height, self.width, out)
        return pillow.resize(features, self.height, self.width)
