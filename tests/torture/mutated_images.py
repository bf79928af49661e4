"""Mutated image files of every kind, by each decoder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image

import etl
from etl.images import pillow, turbo
from etl.sources import RecordError
from tests.image_files import encode, orientation
from tests.torture.mutated_input import Input, writer

MANY_PIXELS = 10_000_000


def _decoder(decode: Callable[[np.ndarray, tuple[int, int] | None], Any]) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        encoded = np.frombuffer(content, np.uint8)
        for at_least in (None, (8, 8)):
            pixels = np.asarray(decode(encoded, at_least))
            assert pixels.dtype == np.uint8
            assert pixels.shape[2:] == (3,)
            if pixels.size > MANY_PIXELS:  # once takes seconds
                return

    return read


def _encode(image: Image.Image, format: str, **options: Any) -> bytes:
    return encode(image, format, **options).tobytes()


def _picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (18, 20, 3), np.uint8))


def _exif() -> Image.Exif:
    exif = orientation(6)
    exif[ExifTags.Base.Make] = "camera"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ExifVersion] = b"0230"
    return exif


def _jpegs() -> list[bytes]:
    picture = _picture()
    return [
        _encode(picture, "JPEG", quality=30),
        _encode(picture, "JPEG", quality=30, progressive=True, subsampling=0),
        _encode(picture, "JPEG", quality=30, exif=_exif(), restart_marker_blocks=1),
        _encode(picture, "JPEG", quality=30, xmp=b'<x tiff:Orientation="6"/>'),
        _encode(picture.convert("L"), "JPEG", quality=30),
        _encode(picture.convert("CMYK"), "JPEG", quality=30),
        _encode(picture, "MPO", save_all=True, append_images=[picture], quality=30),
    ]


def _pngs() -> list[bytes]:
    picture = _picture().resize((5, 4))
    return [
        _encode(picture, "PNG", exif=_exif()),
        _encode(picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=8), "PNG", transparency=b"\0\x80"),
        _encode(picture.convert("1"), "PNG"),
        _encode(picture.convert("LA"), "PNG", icc_profile=b"profile"),
        _encode(Image.fromarray(np.arange(20, dtype=np.uint16).reshape(4, 5)), "PNG"),
        _encode(picture, "PNG", save_all=True, append_images=[picture.rotate(90)]),
    ]


def _webps() -> list[bytes]:
    picture = _picture()
    return [
        _encode(picture, "WEBP", quality=10),
        _encode(picture, "WEBP", lossless=True, exif=_exif()),
        _encode(picture, "WEBP", save_all=True, append_images=[picture.rotate(90)], quality=10),
    ]


def _others() -> list[bytes]:
    picture = _picture()
    return [_encode(picture, kind) for kind in ("GIF", "BMP", "PPM", "TIFF")] + [
        _encode(picture, "TIFF", compression=compression) for compression in ("tiff_lzw", "jpeg", "tiff_adobe_deflate")
    ]


def _repair_png(content: bytes) -> bytes:
    """The checksum of every chunk as it should be, as far as there are chunks."""
    repaired = bytearray(content)
    place = 8
    while place + 12 <= len(repaired):
        (nbytes,) = struct.unpack_from(">I", repaired, place)
        end = place + 8 + nbytes
        if end + 4 > len(repaired):
            break
        struct.pack_into(">I", repaired, end, zlib.crc32(repaired[place + 4 : end]))
        place = end + 4
    return bytes(repaired)


def _in_folder(folder: Path) -> Input:
    file = folder / "images" / "class" / "image.jpg"
    file.parent.mkdir(parents=True)
    file.write_bytes(_jpegs()[0])
    records = etl.records(etl.ImageFolder(folder / "images"), etl.image_pipeline(size=8, decoder="pillow"))
    return Input(_jpegs() + _pngs(), writer(file, lambda: records[0]), (RecordError,), "class/image.jpg")


def _decoded(
    corpus: Callable[[], list[bytes]], repair: Callable[[bytes], bytes], decode: Callable[..., Any], folder: Path
) -> Input:
    return Input(corpus(), _decoder(decode), (ValueError, OSError), repair=repair)


KINDS = {
    "JPEG": (_jpegs, bytes),
    "PNG": (_pngs, _repair_png),
    "WebP": (_webps, bytes),
    "other images": (_others, bytes),
}
DECODERS = {"pillow": pillow.open_image, "turbo": turbo.decode}
IMAGES: dict[str, Callable[[Path], Input]] = {
    **{
        f"{kind} by {name}": partial(_decoded, *KINDS[kind], decode)
        for kind in KINDS
        for name, decode in DECODERS.items()
    },
    "an image in an ImageFolder": _in_folder,
}
