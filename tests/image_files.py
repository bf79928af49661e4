"""Image files in memory, and their EXIF data."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import ExifTags, Image

XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def encode(image: Image.Image, format: str = "PNG", **options: Any) -> np.ndarray:
    """Return the bytes of a file: uint8 of shape `(bytes,)`."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def orientation(number: int) -> Image.Exif:
    """Return EXIF data with this orientation."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = number
    return exif
