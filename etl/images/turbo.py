"""Decoding with libjpeg-turbo (through simplejpeg) and resizing with OpenCV, the fastest known way on a CPU."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from etl.images import pillow
from etl.images.orientation import SIDEWAYS, UPRIGHT_PIXELS, orientation_of_jpeg

JPEG_MAGIC = b"\xff\xd8\xff"
# The colour spaces that libjpeg converts to RGB itself. Pillow reads the rest (CMYK), as for its own decoder.
COLOURSPACES = ("RGB", "YCbCr", "YCC", "Gray")
SCALES = (8, 4, 2)
# Smaller images may have the same size at two scales: Pillow scales them.
MIN_SCALED = 16


def decode(encoded: NDArray[np.uint8], at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Decode the content of an image file, uint8 of shape `(bytes,)`, to upright RGB pixels: `(height, width, 3)`.

    The pixels are bit for bit Pillow's if Pillow uses libjpeg-turbo, too. Files that are not JPEG, are in CMYK or are
    damaged are passed to Pillow. Raises `ValueError` or `OSError` if the bytes are not a whole image, and `ImportError`
    if simplejpeg is not installed.
    """
    simplejpeg = import_simplejpeg()
    size = size_of_supported_jpeg(encoded)
    if size is None or (at_least is not None and min(size) < MIN_SCALED):
        return np.asarray(pillow.open_image(encoded, at_least))
    orientation = orientation_of_jpeg(encoded)
    height, width = (
        (0, 0) if at_least is None else _scaled(size, at_least[::-1] if orientation in SIDEWAYS else at_least)
    )
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            encoded, "RGB", min_height=height, min_width=width, min_factor=1
        )
    except ValueError:  # damaged: Pillow reads as much as it can, or says what is wrong
        return np.asarray(pillow.open_image(encoded, at_least))
    turn = UPRIGHT_PIXELS.get(orientation)
    return pixels if turn is None else np.ascontiguousarray(turn(pixels))


def resize(pixels: NDArray[np.uint8], height: int, width: int, out: np.ndarray | None = None) -> NDArray[np.uint8]:
    """Resize bilinearly between the four nearest pixels; below half the size, some source pixels are not used.

    `pixels` are uint8 of shape `(rows, columns, 3)` or `(rows, columns)`. If `out` has the new shape and is contiguous,
    the result is written there, and `out` is returned. Raises `ImportError` if OpenCV is not installed.
    """
    cv2 = import_cv2()
    resized: np.ndarray = cv2.resize(pixels, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    return resized


def size_of_supported_jpeg(encoded: NDArray[np.uint8]) -> tuple[int, int] | None:
    """Return height and width; None for a file that Pillow has to read, or to refuse."""
    if bytes(encoded[: len(JPEG_MAGIC)]) != JPEG_MAGIC:
        return None
    try:
        height, width, colourspace, _ = import_simplejpeg().decode_jpeg_header(encoded)
    except ValueError:  # damaged, or an unsupported subsampling: Pillow says which
        return None
    if pillow.has_too_many_pixels(width, height):  # Pillow raises the error for it
        return None
    pillow.check_scans(encoded, height * width)
    return (height, width) if colourspace in COLOURSPACES else None


def _scaled(size: tuple[int, int], at_least: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest of an eighth, a quarter and half of `size` that is at least `at_least`, rounded up.

    (0, 0) is the whole size. simplejpeg would also take five eighths, for example, for which libjpeg-turbo has no fast
    transform: it takes longer than decoding the whole image. Pillow has the same three.
    """
    for divisor in SCALES:
        if size[0] >= divisor * at_least[0] and size[1] >= divisor * at_least[1]:
            return -(-size[0] // divisor), -(-size[1] // divisor)
    return 0, 0


def import_simplejpeg() -> ModuleType:
    """Import simplejpeg; raise `ImportError` that says how to install it."""
    return _import("simplejpeg", "decoder 'turbo' needs simplejpeg")


@cache
def import_cv2() -> ModuleType:
    """Import OpenCV, limited to the caller's thread; raise `ImportError` that says how to install it."""
    cv2 = _import("cv2", "resizer 'opencv' needs OpenCV")
    # Loader threads work on one record each. OpenCV's own pool would compete with them for the same cores.
    cv2.setNumThreads(1)
    return cv2


@cache
def _import(name: str, need: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{need}: pip install 'fair-etl[fast]' ({error})") from error
