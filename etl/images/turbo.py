"""Decoding with libjpeg-turbo (through simplejpeg) and resizing with OpenCV: the fastest there is on a CPU."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

from etl.images import pillow
from etl.images.orientation import UPRIGHT_PIXELS, is_sideways, orientation_of_jpeg

JPEG_MAGIC = b"\xff\xd8\xff"
# What libjpeg turns into RGB itself; Pillow reads the rest (CMYK) as it does for its own decoder.
COLOURSPACES = ("RGB", "YCbCr", "YCC", "Gray")


def decode(encoded: np.ndarray, at_least: tuple[int, int] | None = None) -> np.ndarray:
    """The pixels in a file's bytes, uint8 of shape `(bytes,)`: upright RGB, uint8 of shape `(height, width, 3)`.

    The bits that Pillow gives, where both use libjpeg-turbo. Files that are not JPEG, are in CMYK, or are damaged are
    left to Pillow. With `at_least`, a height and width, at the smallest of the eighths of its size that has these
    (Pillow has only the powers of two). Raises `ValueError` or `OSError` for bytes that are not a whole image, and
    `ImportError` where simplejpeg is not installed.
    """
    simplejpeg = import_simplejpeg()
    if not _is_usual_jpeg(simplejpeg, encoded):
        return pillow.to_pixels(pillow.open_image(encoded, at_least))
    orientation = orientation_of_jpeg(encoded)
    height, width = at_least or (0, 0)  # 0 is no minimum
    if is_sideways(orientation):
        height, width = width, height
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(encoded, "RGB", min_height=height, min_width=width, min_factor=1)
    except ValueError:  # damaged: Pillow reads what can be read, and says what cannot
        return pillow.to_pixels(pillow.open_image(encoded, at_least))
    turn = UPRIGHT_PIXELS.get(orientation)
    return pixels if turn is None else np.ascontiguousarray(turn(pixels))


def resize(pixels: np.ndarray, height: int, width: int, out: np.ndarray | None = None) -> np.ndarray:
    """Bilinear between the four nearest pixels; where an image shrinks to less than half, some count for nothing.

    uint8 of shape `(height, width, 3)`, or `(height, width)` as `pixels` have; it is `out` where that is given, of this
    shape and dtype, and contiguous. Raises `ImportError` where OpenCV is not installed.
    """
    cv2 = import_cv2()
    resized: np.ndarray = cv2.resize(pixels, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    return resized


def _is_usual_jpeg(simplejpeg: ModuleType, encoded: np.ndarray) -> bool:
    if bytes(encoded[: len(JPEG_MAGIC)]) != JPEG_MAGIC:
        return False
    try:
        height, width, colourspace, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:  # damaged, or of a subsampling that it does not know: Pillow says which
        return False
    if pillow.has_too_many_pixels(width, height):  # Pillow refuses it, and says so
        return False
    pillow.check_scans(encoded, height * width)
    return colourspace in COLOURSPACES


@cache
def import_simplejpeg() -> ModuleType:
    """simplejpeg; raises `ImportError` that says how to install it."""
    try:
        import simplejpeg
    except ImportError as error:
        raise ImportError(f"decoder 'turbo' needs simplejpeg: pip install 'fair-etl[fast]' ({error})") from error
    module: ModuleType = simplejpeg
    return module


@cache
def import_cv2() -> ModuleType:
    """OpenCV, using the caller's thread only; raises `ImportError` that says how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise ImportError(f"resizer 'opencv' needs OpenCV: pip install 'fair-etl[fast]' ({error})") from error
    # Threads are spread over records; OpenCV's own, one pool for the process, would fight them for the same cores.
    cv2.setNumThreads(1)
    module: ModuleType = cv2
    return module
