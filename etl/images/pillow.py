"""Decoding and resizing with Pillow, which reads every format that there is."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from etl.images.orientation import UPRIGHT_IMAGE, is_sideways, orientation_of_image


def open_image(encoded: np.ndarray, at_least: tuple[int, int] | None = None) -> Image.Image:
    """The image in a file's bytes, uint8 of shape `(bytes,)`: decoded, upright, of mode RGB.

    Rotated as its EXIF orientation says; greyscale, palette and CMYK are converted; alpha is dropped, as
    torchvision's `ImageFolder` does; 16 bits a channel keep their upper 8. With `at_least`, a height and width, a JPEG
    file is decoded at the smallest of 1/1, 1/2, 1/4 and 1/8 of its size that has these. Raises `OSError` or
    `ValueError` for bytes that are not a whole image.
    """
    try:
        opened = Image.open(io.BytesIO(encoded.data))
    except UnidentifiedImageError:
        raise ValueError("not an image that Pillow knows; remove or replace the file") from None
    with opened:
        orientation = orientation_of_image(opened)
        if at_least is not None:
            height, width = at_least[::-1] if is_sideways(orientation) else at_least
            opened.draft(None, (width, height))
        turn = UPRIGHT_IMAGE.get(orientation)
        image = opened if turn is None else opened.transpose(turn)
        return to_rgb(image)


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` decoded, of mode RGB: greyscale, palette and CMYK are converted, alpha is dropped, 16 bits a channel keep
    their upper 8.
    """
    if image.mode.startswith("I;16") or image.mode == "I":
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    # Alpha is dropped, and Pillow would warn that it cannot be kept.
    image.info.pop("transparency", None)
    if image.mode != "RGB":
        return image.convert("RGB")
    image.load()  # errors in the data belong to decoding, and closing the file must not lose the pixels
    return image


def to_pixels(image: Image.Image) -> np.ndarray:
    """The pixels of an image of mode RGB: uint8 of shape `(height, width, 3)`, read-only."""
    return np.asarray(image)


def resize(features: np.ndarray | Image.Image, height: int, width: int) -> np.ndarray:
    """Bilinear, where shrinking with the support for it: every source pixel counts. uint8 of shape
    `(height, width, 3)`, or `(height, width)` as `features` have.
    """
    image = features if isinstance(features, Image.Image) else Image.fromarray(features)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
