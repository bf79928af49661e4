"""Stage "decode": the bytes of an image file to upright RGB pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from etl.images import pillow, turbo
from etl.sources.record import Record
from etl.stages.random_resized_crop import RandomResizedCrop
from etl.stages.resize import Resize
from etl.stages.stage import ADDED_LATER, AnyStage

# From encoded bytes to an image of Pillow, or to an array of pixels.
DECODERS: dict[str, Callable[[np.ndarray, tuple[int, int] | None], Any]] = {
    "pillow": pillow.open_image,
    "turbo": turbo.decode,
}


@dataclass(frozen=True)
class Decode:
    """Decode `features`, uint8 of shape `(bytes,)`, into uint8 of shape `(height, width, 3)`.

    `decoder` is "pillow", or "turbo" for libjpeg-turbo, which gives the same pixels. With `at_least`, a height and
    width, JPEG files are scaled while they are decoded, to the smallest size the decoder offers that has these: other
    pixels, and less work where a photograph is much larger.
    """

    decoder: str = "pillow"
    at_least: tuple[int, int] | None = field(default=None, metadata=ADDED_LATER)
    name: ClassVar[str] = "decode"
    fingerprint_kind: ClassVar[str] = "etl.stages.decode.Decode"
    changes_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"unknown decoder {self.decoder!r}; known: {', '.join(DECODERS)}")
        if self.at_least is not None and (len(self.at_least) != 2 or min(self.at_least) < 1):
            raise ValueError(f"at_least is a height and a width of at least 1 pixel, not {self.at_least}")

    def __call__(self, record: Record) -> Record:
        opened = self.open(record["features"])
        return {**record, "features": pillow.to_pixels(opened) if isinstance(opened, Image.Image) else opened}

    def open(self, encoded: np.ndarray) -> Any:
        """The image as the decoder gives it: an array, or an image of Pillow."""
        return DECODERS[self.decoder](encoded, self.at_least)

    def before(self, following: AnyStage) -> AnyStage:
        """What does this stage's work where `following` comes next."""
        # Subclasses may do something else.
        takes_image = type(following) in (Resize, RandomResizedCrop)
        keeps_image = takes_image and getattr(following, "resizer", None) == self.decoder == "pillow"
        return _DecodeForResize(self) if keeps_image else self


@dataclass(frozen=True)
class _DecodeForResize:
    """Leaves the image in the form in which the decoder gave it, which `Resize` takes, too.

    Two copies of the whole photograph less, made while holding the interpreter's lock: with Pillow a photograph of
    514 x 358 took 0.6 of the time.
    """

    decode: Decode
    name: ClassVar[str] = "decode"

    def __call__(self, record: Record) -> Record:
        return {**record, "features": self.decode.open(record["features"])}
