"""Decoding and resizing with Pillow, which reads all common formats."""

from __future__ import annotations

import io
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from etl.images.jpeg import START_OF_SCAN, jpeg_segments
from etl.images.orientation import SIDEWAYS, UPRIGHT_IMAGE, orientation_of_image
from etl.images.settings import pillow_settings, take_over
from presave.parallel_write import WORKER_PREPARATIONS

# Formats of plain pixels; file names do not matter. Some of Pillow's other formats are languages, and one of them runs
# a program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

JPEG_FORMATS = ("JPEG", "MPO")
MARKER = 0xFF
MIN_SCAN_NBYTES = 10
# Most scans of a JPEG image of the largest size allowed, and proportionally more for smaller ones. Encoders write 1 to
# 12.
MAX_SCANS = 20
MAX_16_BITS = (1 << 16) - 1

# Pillow has no other way to permit these.
TOO_MANY_PIXELS = "set PIL.Image.MAX_IMAGE_PIXELS (--max-image-pixels) if you trust it"
TRUNCATED = (
    "remove or replace the file, or set PIL.ImageFile.LOAD_TRUNCATED_IMAGES (--load-truncated-images) to read what "
    "there is of it"
)

WORKER_PREPARATIONS.append(lambda: partial(take_over, pillow_settings()))


@cache
def suffixes() -> tuple[str, ...]:
    """Return the suffixes, in lower case, of the formats that are decoded."""
    formats = {*FORMATS, *JPEG_FORMATS}
    return tuple(sorted(suffix for suffix, known in Image.registered_extensions().items() if known in formats))


def open_image(encoded: NDArray[np.uint8], at_least: tuple[int, int] | None = None) -> Image.Image:
    """Decode the content of an image file, uint8 of shape `(bytes,)`, to an upright image of mode RGB, see `to_rgb`.

    If there are several frames or pages, the first is taken. Raises `OSError` or `ValueError` if the bytes are not a
    whole image, 8 bits cannot hold its pixels, it has more pixels than `PIL.Image.MAX_IMAGE_PIXELS`, or it is a JPEG
    file with so many scans that decoding would take too long.
    """
    try:
        return _open_image(encoded, at_least)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # of the latter, if it is an error
        raise ValueError(f"{error}; {TOO_MANY_PIXELS}") from None
    except UnidentifiedImageError:
        raise ValueError("not an image that Pillow knows; remove or replace the file") from None
    except OSError as error:
        if "truncated" in str(error) and not ImageFile.LOAD_TRUNCATED_IMAGES:
            raise OSError(f"{error}; {TRUNCATED}") from None
        raise
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise SyntaxError, TypeError and others for a damaged file
        raise ValueError(f"{str(error) or type(error).__name__}; remove or replace the file") from error


def _open_image(encoded: NDArray[np.uint8], at_least: tuple[int, int] | None) -> Image.Image:
    with Image.open(io.BytesIO(encoded.data), formats=FORMATS) as opened:
        # Pillow only warns up to twice as many pixels, and a file of 100 bytes can take seconds.
        if has_too_many_pixels(opened.width, opened.height):
            raise ValueError(
                f"{opened.width} x {opened.height} pixels are more than {Image.MAX_IMAGE_PIXELS:,}; {TOO_MANY_PIXELS}"
            )
        if opened.format in JPEG_FORMATS:
            check_scans(encoded, opened.width * opened.height)
            if at_least is not None:
                height, width = at_least[::-1] if orientation_of_image(opened) in SIDEWAYS else at_least
                opened.draft(None, (width, height))
        image = to_rgb(opened)
        # Only now: Pillow turns a TIFF file while it loads the pixels, and then reports no orientation any more.
        turn = UPRIGHT_IMAGE.get(orientation_of_image(opened))
        return image if turn is None else image.transpose(turn)


def has_too_many_pixels(width: int, height: int) -> bool:
    """Return True if an image has more pixels than `PIL.Image.MAX_IMAGE_PIXELS`, if that is set."""
    return Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS


def check_scans(encoded: NDArray[np.uint8], pixels: int) -> None:
    """Raise `ValueError` for a JPEG file with far more scans over its pixels than any encoder writes."""
    if Image.MAX_IMAGE_PIXELS is None:
        return
    max_scans = MAX_SCANS * Image.MAX_IMAGE_PIXELS // max(1, pixels)
    if len(encoded) <= max_scans * MIN_SCAN_NBYTES:
        return
    # Comparing bytes is faster, but finds too many: in other segments, and in what follows the image. `bytes.count`
    # takes four times as long, with the GIL.
    if np.count_nonzero((encoded[:-1] == MARKER) & (encoded[1:] == START_OF_SCAN)) > max_scans:
        scans = sum(marker == START_OF_SCAN for marker, _ in jpeg_segments(encoded.data))
        if scans > max_scans:
            raise ValueError(
                f"{scans} scans of {pixels:,} pixels, which is not a photograph; remove or replace the file"
            )


def to_rgb(image: Image.Image) -> Image.Image:
    """Return `image` decoded, of mode RGB.

    Greyscale, palette and CMYK are converted; alpha is dropped, as in torchvision's `ImageFolder`; 16-bit channels keep
    their upper 8 bits. Raises `ValueError` for floating-point pixels and for integers of more than 16 bits: no
    conversion to 8 bits is right for all of them, and Pillow's own turns pixels between 0 and 1 black.
    """
    image.load()  # so that damaged data is an error of decoding, and the pixels outlive the file
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known; convert it to 8 or 16 bits")
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image)
        if image.mode == "I" and (values.min() < 0 or values.max() > MAX_16_BITS):
            raise ValueError("its pixels are integers of more than 16 bits; convert it to 8 or 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    # Alpha is dropped, and Pillow would warn that it cannot be kept.
    image.info.pop("transparency", None)
    return image if image.mode == "RGB" else image.convert("RGB")


def resize(features: np.ndarray | Image.Image, height: int, width: int) -> NDArray[np.uint8]:
    """Resize bilinearly with antialiasing: when an image shrinks, every source pixel counts.

    `features` are uint8 of shape `(rows, columns, 3)` or `(rows, columns)`, or a Pillow image; the result is an array.
    """
    image = features if isinstance(features, Image.Image) else _as_image(features)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def _as_image(pixels: np.ndarray) -> Image.Image:
    try:
        return Image.fromarray(pixels)
    except TypeError:  # of which the text names no shape
        raise ValueError(
            f"features are {pixels.dtype} of shape {pixels.shape}; Pillow resizes uint8 of shape (rows, columns, 3) or "
            "(rows, columns), before 'channels_first'"
        ) from None
