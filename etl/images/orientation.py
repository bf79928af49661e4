"""The EXIF orientation of a photograph, and operations that turn its pixels upright."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import ExifTags, Image

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
# Orientations from here on exchange width and height.
FIRST_SIDEWAYS = 5

# A segment of a JPEG file (ITU-T T.81, B.1.1.3) begins with 0xFF, its marker, and usually the length of what follows.
START_OF_SCAN, APP1 = 0xDA, 0xE1
SEGMENT = struct.Struct(">BBH")
EXIF_HEADER = b"Exif\0\0"
XMP_HEADER = b"http://ns.adobe.com/xap/1.0/\0"
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def orientation_of_image(image: Image.Image) -> Any:
    """Return the EXIF orientation of a Pillow image; None if there is none or the EXIF data is damaged."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, struct.error):  # damaged EXIF data; the pixels may be whole
        return None


def orientation_of_jpeg(encoded: np.ndarray) -> Any:
    """Return the orientation in the bytes of a JPEG file, uint8 of shape `(bytes,)`, as Pillow would find it.

    The orientation in the EXIF data comes first, then that in the XMP data. None if there is neither, or the EXIF data
    is damaged.
    """
    exif = xmp = b""
    for content in _app1_segments(encoded.data):
        if content.startswith(EXIF_HEADER):
            exif += content[len(EXIF_HEADER) :] if exif else content
        elif content.startswith(XMP_HEADER):
            xmp = content
    if exif:
        found = Image.Exif()
        try:
            found.load(exif)
            if ExifTags.Base.Orientation in found:
                return found[ExifTags.Base.Orientation]
        except (SyntaxError, struct.error):
            return None
    match = XMP_ORIENTATION.search(xmp)
    return int(match[1]) if match else None


def is_sideways(orientation: Any) -> bool:
    """Return True if turning the image upright exchanges its width and height."""
    return orientation in UPRIGHT_PIXELS and orientation >= FIRST_SIDEWAYS


def _app1_segments(encoded: memoryview) -> Iterator[bytes]:
    position = 2
    while position + SEGMENT.size <= len(encoded):
        start, marker, nbytes = SEGMENT.unpack_from(encoded, position)
        if start != 0xFF or marker == START_OF_SCAN:
            return
        if marker == 0xFF:  # padding
            position += 1
            continue
        if marker == APP1:
            yield bytes(encoded[position + 4 : position + 2 + nbytes])
        position += 2 + max(nbytes, 2)
