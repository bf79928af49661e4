"""The EXIF orientation of a photograph, and operations that turn its pixels upright."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from etl.images.jpeg import APP1, START_OF_SCAN, jpeg_segments

# How to turn an image upright, by EXIF orientation (CIPA DC-008, tag 0x0112): for Pillow images, and for arrays of
# shape (height, width, channels).
UPRIGHT_IMAGE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
UPRIGHT_PIXELS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}
# Orientations that exchange width and height.
SIDEWAYS = range(5, 9)

EXIF_HEADER = b"Exif\0\0"
XMP_HEADER = b"http://ns.adobe.com/xap/1.0/\0"


def orientation_of_image(image: Image.Image) -> Any:
    """Return the EXIF orientation of a Pillow image; None if there is none or the EXIF data is damaged."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - Pillow raises many kinds for damaged EXIF data; the pixels may be whole
        return None


def orientation_of_jpeg(encoded: NDArray[np.uint8]) -> Any:
    """Return the orientation in the bytes of a JPEG file, uint8 of shape `(bytes,)`, as Pillow would find it."""
    found: dict[str, bytes] = {}
    for marker, place in jpeg_segments(encoded.data):
        if marker == START_OF_SCAN:
            break
        if marker == APP1:
            content = encoded[place].tobytes()
            if content.startswith(EXIF_HEADER):
                found["exif"] = found["exif"] + content[len(EXIF_HEADER) :] if "exif" in found else content
            elif content.startswith(XMP_HEADER):
                found["xmp"] = content[len(XMP_HEADER) :]
    if not found:
        return None
    image = Image.Image()  # it has no pixels, and the metadata that Pillow would have read from the file
    image.info.update(found)
    return orientation_of_image(image)
