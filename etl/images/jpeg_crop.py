"""Decoding a part of a JPEG file, with TurboJPEG 3 if this machine has it.

Rows above the part are only entropy-decoded, rows below it not at all. No package of PyPI offers this. The library
comes with libjpeg-turbo 3, which conda, Homebrew and some Linux distributions have.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
import threading
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from etl.images import turbo
from etl.images.jpeg import END_OF_IMAGE
from etl.images.orientation import SIDEWAYS, UPRIGHT_PIXELS, orientation_of_jpeg

# First row, first column, height and width, in pixels.
Region = tuple[int, int, int, int]

# The path of the library, for one that the dynamic linker does not find.
PATH_VARIABLE = "FAIR_ETL_TURBOJPEG"
NAMES = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}
# From turbojpeg.h.
DECOMPRESS, STOP_ON_WARNING, SUBSAMPLING, RGB = 1, 0, 4, 0
MCU_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}
# Chroma is interpolated between neighbours, which have to be decoded, too.
MARGIN = 2


class _Rectangle(ctypes.Structure):
    _fields_ = [(name, c_int) for name in ("x", "y", "width", "height")]  # noqa: RUF012


# The result and the arguments of each function.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tj3Init": (c_void_p, [c_int]),
    "tj3Destroy": (None, [c_void_p]),
    "tj3Set": (c_int, [c_void_p, c_int, c_int]),
    "tj3Get": (c_int, [c_void_p, c_int]),
    "tj3DecompressHeader": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tj3SetCroppingRegion": (c_int, [c_void_p, _Rectangle]),
    "tj3Decompress8": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_int, c_int]),
}


def decode(encoded: NDArray[np.uint8], choose: Callable[[int, int], Region]) -> tuple[NDArray[np.uint8], bool]:
    """Decode a part of an image file to upright RGB pixels, with the values of `turbo.decode`.

    `choose` returns the part of an upright image of the given height and width. The whole file is decoded if it is not
    a JPEG file, is in CMYK, or the library finds something wrong with it. Damage below the part is not seen. Pillow
    does not report it, either, unless the file ends early.

    Returns
    -------
    uint8 array of shape (height, width, 3), and whether it is the part.
    """
    library, size = find_library(), turbo.size_of_supported_jpeg(encoded)
    if library is not None and size is not None and encoded[-2:].tolist() == [0xFF, END_OF_IMAGE]:
        orientation = orientation_of_jpeg(encoded)
        region = choose(*(size[::-1] if orientation in SIDEWAYS else size))
        pixels = library.decode(encoded, size, _as_stored(region, size, orientation))
        if pixels is not None:
            turn = UPRIGHT_PIXELS.get(orientation)
            return pixels if turn is None else np.ascontiguousarray(turn(pixels)), True
    return turbo.decode(encoded), False


@cache
def find_library() -> TurboJpeg | None:
    """Return the library if this machine has it and its pixels are those of `turbo.decode`.

    Raises `ImportError` if `PATH_VARIABLE` is set to anything else.
    """
    chosen, name = os.environ.get(PATH_VARIABLE), NAMES.get(sys.platform, "libturbojpeg.so.0")
    for path in [chosen] if chosen else [str(Path(sys.prefix, "lib", name)), name]:
        try:
            library = TurboJpeg(path)
        except (OSError, AttributeError):  # it is not there, or older than 3
            continue
        if library.is_exact():
            return library
    if chosen:
        raise ImportError(f"{PATH_VARIABLE}={chosen} is not TurboJPEG 3, or decodes to other pixels")
    return None


class TurboJpeg(threading.local):
    """TurboJPEG 3, with a decompressor for each thread.

    Raises `OSError` if there is no library at `path`, and `AttributeError` if it is older than 3.
    """

    def __init__(self, path: str) -> None:
        self._library: Any = ctypes.CDLL(path)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._decompressor = _Decompressor(self._library)

    def decode(self, encoded: NDArray[np.uint8], size: tuple[int, int], region: Region) -> NDArray[np.uint8] | None:
        """Return the RGB pixels of `region` of an image of `size`; None if the library finds anything wrong with it."""
        library, handle = self._library, self._decompressor.handle
        encoded = np.ascontiguousarray(encoded)
        file = (encoded.ctypes.data, encoded.size)
        if library.tj3DecompressHeader(handle, *file):
            return None
        mcu_width = MCU_WIDTHS.get(library.tj3Get(handle, SUBSAMPLING))
        if mcu_width is None:
            return None
        row, column, rows, columns = region
        top, left = max(0, row - MARGIN), max(0, column - MARGIN) // mcu_width * mcu_width
        height, width = min(size[0], row + rows + MARGIN) - top, min(size[1], column + columns + MARGIN) - left
        pixels = np.empty((height, width, 3), np.uint8)
        if library.tj3SetCroppingRegion(handle, _Rectangle(left, top, width, height)):
            return None
        if library.tj3Decompress8(handle, *file, pixels.ctypes.data, 0, RGB):
            return None
        return pixels[row - top : row - top + rows, column - left : column - left + columns]

    def is_exact(self) -> bool:
        """Return whether part of an image of noise, with subsampled chroma, is that of the whole."""
        height, width = 70, 90
        noise = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "jpeg", quality=90, subsampling="4:2:0")
        encoded = np.frombuffer(file.getvalue(), np.uint8)
        part = self.decode(encoded, (height, width), (21, 32, 40, 31))
        return part is not None and np.array_equal(part, turbo.decode(encoded)[21:61, 32:63])


class _Decompressor:
    """Frees its memory when its thread ends."""

    def __init__(self, library: Any) -> None:
        self._destroy, self.handle = library.tj3Destroy, library.tj3Init(DECOMPRESS)
        library.tj3Set(self.handle, STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        self._destroy(self.handle)


def _as_stored(region: Region, size: tuple[int, int], orientation: Any) -> Region:
    """Return the place of a part of an upright image in the image as stored, which has `size`."""
    row, column, rows, columns = region
    if orientation in SIDEWAYS:
        row, column, rows, columns = column, row, columns, rows
    if orientation in (3, 4, 6, 7):
        row = size[0] - row - rows
    if orientation in (2, 3, 7, 8):
        column = size[1] - column - columns
    return row, column, rows, columns
