"""Stage "decode": the bytes of an image file to upright RGB pixels."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from etl.record import Record

# What turns an image upright, by its EXIF orientation (CIPA DC-008, tag 0x0112).
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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
    with opened:
        turn = UPRIGHT.get(_orientation(opened))
        image = opened if turn is None else opened.transpose(turn)
        if image.mode.startswith("I;16") or image.mode == "I":
            grey = (np.asarray(image) >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
        # Alpha is dropped, and Pillow would warn that it cannot be kept.
        image.info.pop("transparency", None)
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _orientation(image: Image.Image) -> Any:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, struct.error):  # damaged EXIF data, which the pixels do not depend on
        return None


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
