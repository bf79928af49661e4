"""Stage "decode": the bytes of an image file to upright RGB pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from etl.record import Record


def decode_with_pillow(encoded: np.ndarray) -> np.ndarray:
    """Pixels of an image file: uint8 of shape `(height, width, 3)`.

    Rotated as its EXIF orientation says; greyscale, palette and CMYK are converted; alpha is dropped, as
    torchvision's `ImageFolder` does; 16 bits a channel keep their upper 8. Raises `OSError` or `ValueError` for
    bytes that are not a whole image.
    """
    try:
        opened = Image.open(io.BytesIO(encoded.data))
    except UnidentifiedImageError:
        raise ValueError("not an image that Pillow knows; remove or replace the file") from None
    with opened as image:
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith("I;16") or image.mode == "I":
            wide = np.asarray(image)
            grey = (wide >> 8 if wide.max(initial=0) > 255 else wide).astype(np.uint8)
            return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


DECODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"pillow": decode_with_pillow}


@dataclass(frozen=True)
class Decode:
    """Decode `features`, uint8 of shape `(bytes,)`, into uint8 of shape `(height, width, 3)`."""

    decoder: str = "pillow"
    name: ClassVar[str] = "decode"

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"unknown decoder {self.decoder!r}; known: {', '.join(DECODERS)}")

    def __call__(self, record: Record) -> Record:
        return {**record, "features": DECODERS[self.decoder](record["features"])}
