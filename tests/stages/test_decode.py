"""The decoder: every image file becomes upright RGB, and other files are errors."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

import etl
import presave
from etl.sources import RecordError
from tests.image_files import XMP, encode
from tests.image_files import orientation as exif_of

# Black, with one bright corner: any turn or flip shows.
UPRIGHT = np.zeros((4, 6, 3), np.uint8)
UPRIGHT[0, 0] = (250, 130, 10)
UPRIGHT[0, 5] = (40, 200, 90)


def decode(encoded: np.ndarray, decoder: str = "pillow") -> np.ndarray:
    pixels: np.ndarray = etl.stages.Decode(decoder)({"features": encoded, "label": 0})["features"]
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    return pixels


def test_rgb_is_decoded_as_it_is() -> None:
    np.testing.assert_array_equal(decode(encode(Image.fromarray(UPRIGHT))), UPRIGHT)


def test_alpha_is_dropped_and_the_colour_below_it_kept() -> None:
    alpha = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
    rgba = Image.fromarray(np.concatenate([UPRIGHT, alpha], axis=2))
    np.testing.assert_array_equal(decode(encode(rgba)), UPRIGHT)


@pytest.mark.parametrize("transparency", [None, 0, 1, bytes([0, 128, 255])])
def test_a_palette_is_looked_up_whatever_is_transparent_in_it(transparency: int | bytes | None) -> None:
    image = Image.new("P", (6, 4), 0)
    image.putpalette([1, 2, 3, 250, 130, 10, 40, 200, 90])
    image.putpixel((0, 0), 1)
    image.putpixel((5, 0), 2)
    options = {} if transparency is None else {"transparency": transparency}
    pixels = decode(encode(image, **options))
    assert pixels[0, 0].tolist() == [250, 130, 10]
    assert pixels[0, 5].tolist() == [40, 200, 90]
    assert (pixels[1:] == [1, 2, 3]).all()


@pytest.mark.parametrize(("mode", "colour"), [("L", 7), ("RGB", (7, 8, 9))])
def test_a_transparent_colour_stays_that_colour(mode: str, colour: Any) -> None:
    pixels = decode(encode(Image.new(mode, (6, 4), colour), transparency=colour))
    assert (pixels == colour).all()


@pytest.mark.parametrize("brightest", [65535, 255])
def test_sixteen_bits_keep_their_upper_eight_however_dark_the_image(brightest: int) -> None:
    wide = np.linspace(0, brightest, 24).astype(np.uint16).reshape(4, 6)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(wide)))[:, :, 1], wide >> 8)


def test_cmyk_is_converted_and_its_ink_is_not_light() -> None:
    # Pillow writes CMYK as Adobe does: inverted, with an Adobe marker that says so.
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    encoded = encode(image, "JPEG", quality=95)
    assert b"Adobe" in encoded.tobytes()
    red, green, blue = decode(encoded)[8, 8].tolist()
    assert red > 245
    assert green < 10
    assert blue < 10


PAGES: dict[str, Any] = {"save_all": True}  # and another page, see `stored`
TILED = {"tiffinfo": {ExifTags.Base.TileWidth: 16, ExifTags.Base.TileLength: 16}}
EIGHT_BITS = ("L", "RGB", "CMYK")
# The modes of each kind of file that holds EXIF data.
KINDS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("JPEG", {"quality": 90}, EIGHT_BITS),
    ("MPO", PAGES, ("RGB",)),
    ("PNG", {}, ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("PNG", PAGES, ("RGB",)),
    ("WEBP", {"lossless": True}, ("RGB", "RGBA")),
    ("TIFF", {}, ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "LAB", "I", "I;16", "I;16B")),
    ("TIFF", {"compression": "tiff_lzw"}, ("RGB", "YCbCr", "I;16B")),
    ("TIFF", {"compression": "tiff_adobe_deflate"}, ("P", "I;16")),
    ("TIFF", {"compression": "jpeg"}, ("RGB",)),
    ("TIFF", {"compression": "group4"}, ("1",)),
    ("TIFF", {"big_tiff": True}, ("RGB", "I;16")),
    ("TIFF", TILED, ("L", "RGB")),
    ("TIFF", PAGES, ("RGB",)),
]


def picture(mode: str) -> Image.Image:
    colours = np.random.default_rng(0).integers(0, 256, (18, 33, 4), dtype=np.uint8)
    if mode in ("I", "I;16", "I;16B"):
        wide = colours[..., :2].copy().view({"I;16": "<u2", "I;16B": ">u2", "I": "<u2"}[mode])[..., 0]
        return (
            Image.fromarray(wide.astype(np.int32)) if mode == "I" else Image.frombytes(mode, (33, 18), wide.tobytes())
        )
    if mode == "LAB":
        return Image.frombytes("LAB", (33, 18), colours[..., :3].tobytes())
    return (
        Image.fromarray(colours).convert("P" if mode == "PA" else mode if mode in EIGHT_BITS else "RGB").convert(mode)
    )


def stored(mode: str, format: str, options: dict[str, Any]) -> np.ndarray:
    pages = {"append_images": [Image.new("RGB", (5, 9))]} if "save_all" in options else {}
    return encode(picture(mode), format, **options, **pages)


def turned_by_pillow(encoded: np.ndarray) -> np.ndarray:
    with Image.open(io.BytesIO(encoded.tobytes())) as image:
        turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):
        upper = (np.asarray(turned) >> 8).astype(np.uint8)
        return np.stack([upper] * 3, axis=2)
    return np.asarray(turned.convert("RGB"))


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.parametrize(
    ("format", "options", "mode"),
    [(*kind, mode) for *kind, modes in KINDS for mode in modes],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_every_format_and_mode_is_turned_as_by_exif_transpose(
    format: str, options: dict[str, Any], mode: str, decoder: str
) -> None:
    for orientation in range(1, 9):
        given = {**options, "exif": exif_of(orientation)}
        if "tiffinfo" in options:
            given = {"tiffinfo": {**options["tiffinfo"], ExifTags.Base.Orientation: orientation}}
        encoded = stored(mode, format, given)
        np.testing.assert_array_equal(decode(encoded, decoder), turned_by_pillow(encoded), str(orientation))


def test_a_big_endian_tiff_is_turned_once_in_a_store_too(tmp_path: Path) -> None:
    tags = [(256, 4, 4), (257, 4, 6), (258, 3, 8 << 16), (262, 3, 1 << 16), (273, 4, 110), (274, 3, 6 << 16)]
    tags += [(277, 3, 1 << 16), (279, 4, 24)]
    directory = b"".join(struct.pack(">HHII", tag, kind, 1, value) for tag, kind, value in tags)
    header = b"MM\0*\0\0\0\x08" + struct.pack(">H", len(tags)) + directory + bytes(4)
    encoded = np.frombuffer(header.ljust(110, b"\0") + np.rot90(UPRIGHT[:, :, 0], 1).tobytes(), np.uint8)
    records = etl.records([{"features": encoded, "label": 0}], etl.Pipeline([etl.stages.Decode()]))
    with presave.write(tmp_path / "one.store", records) as store:
        pixels = store.gather([0])["features"][0]
    np.testing.assert_array_equal(pixels, turned_by_pillow(encoded))


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {"xmp": XMP}),
        ("WEBP", {"xmp": XMP, "lossless": True}),
        ("TIFF", {"tiffinfo": {700: XMP}}),
        ("MPO", {"xmp": XMP, **PAGES}),
    ],
)
def test_an_orientation_in_xmp_data_counts_as_for_exif_transpose(
    format: str, options: dict[str, Any], decoder: str
) -> None:
    encoded = stored("RGB", format, options)
    pixels = decode(encoded, decoder)
    assert pixels.shape == (33, 18, 3)
    np.testing.assert_array_equal(pixels, turned_by_pillow(encoded))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_changes_nothing(orientation: int) -> None:
    exif = exif_of(orientation)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(UPRIGHT), exif=exif)), UPRIGHT)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_damaged_exif_data_does_not_make_the_image_unreadable(format: str) -> None:
    encoded = encode(Image.fromarray(UPRIGHT), format, exif=b"Exif\0\0this is no TIFF header")
    assert decode(encoded).shape == UPRIGHT.shape


def png_with(chunk: bytes, content: bytes, behind_pixels: bool) -> np.ndarray:
    encoded = encode(Image.fromarray(UPRIGHT)).tobytes()
    place = encoded.index(b"IEND" if behind_pixels else b"IDAT") - 4
    checked = struct.pack(">I", len(content)) + chunk + content + struct.pack(">I", zlib.crc32(chunk + content))
    return np.frombuffer(encoded[:place] + checked + encoded[place:], np.uint8)


RAW_PROFILE = b"Raw profile type exif\0"


@pytest.mark.parametrize("behind_pixels", [False, True])
@pytest.mark.parametrize(
    ("chunk", "content"),
    [
        (b"tEXt", RAW_PROFILE + b"\nexif\n   8\nno hex at all"),
        (b"tEXt", RAW_PROFILE + b"\nexif\n   3\n457"),
        (b"tEXt", RAW_PROFILE),
        (b"zTXt", RAW_PROFILE + b"\0" + zlib.compress(b"\nexif\n   8\nzz")),
        (b"eXIf", b"II*\0\xff\xff\xff\xff"),
        (b"eXIf", b"neither II nor MM"),
        (b"eXIf", b""),
    ],
)
def test_unreadable_metadata_of_a_png_does_not_make_it_unreadable(
    chunk: bytes, content: bytes, behind_pixels: bool
) -> None:
    np.testing.assert_array_equal(decode(png_with(chunk, content, behind_pixels)), UPRIGHT)


def test_exif_data_behind_the_pixels_of_a_png_counts_as_before_them() -> None:
    exif = exif_of(3)
    encoded = png_with(b"eXIf", exif.tobytes()[6:], behind_pixels=True)
    np.testing.assert_array_equal(decode(encoded), UPRIGHT[::-1, ::-1])


# The type, the count and the value of the tag "orientation": text, a fraction, a fraction by zero, two numbers, an
# unknown type, more values than there is room for.
@pytest.mark.parametrize(
    "entry",
    [
        struct.pack("<HI4s", 2, 2, b"6"),
        struct.pack("<HII", 5, 1, 26) + struct.pack("<III", 0, 6, 1),
        struct.pack("<HII", 5, 1, 26) + struct.pack("<III", 0, 6, 0),
        struct.pack("<HIHH", 3, 2, 6, 6),
        struct.pack("<HII", 99, 1, 6),
        struct.pack("<HII", 3, 1 << 30, 8),
    ],
)
@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # about damaged EXIF data
def test_an_orientation_that_is_no_number_counts_as_for_exif_transpose(entry: bytes, decoder: str) -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1" + entry + bytes(4)
    encoded = encode(picture("RGB"), "JPEG", exif=exif)
    np.testing.assert_array_equal(decode(encoded, decoder), turned_by_pillow(encoded))


def test_what_is_no_image_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match="not an image that Pillow knows; remove or replace the file"):
        decode(np.frombuffer(b"<html>404</html>", np.uint8))


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.parametrize("following", [None, etl.stages.Resize(4, 4), etl.stages.RandomResizedCrop(4, 4)])
@pytest.mark.parametrize(
    ("features", "described"),
    [
        (UPRIGHT, r"uint8 of shape \(4, 6, 3\)"),
        (np.zeros(9), r"float64 of shape \(9,\)"),
        (encode(Image.fromarray(UPRIGHT), "JPEG").tobytes(), "a bytes"),
    ],
    ids=["pixels", "floats", "bytes"],
)
def test_features_that_are_not_the_bytes_of_a_file_are_described_and_no_file_is_blamed(
    features: Any, described: str, following: Any, decoder: str
) -> None:
    stages = [etl.stages.Decode(decoder), *([] if following is None else [following])]
    message = f"failed at stage 'decode': features are {described}, not an array of the bytes .*the stage out"
    with pytest.raises(RecordError, match=message):
        next(iter(etl.RawIterator([{"features": features, "label": 0}], etl.Pipeline(stages), 1)))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_image_is_an_error_and_not_half_grey(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    encoded = encode(Image.fromarray(noise), format)
    for share in (0.5, 0.98):
        with pytest.raises((OSError, ValueError)):
            decode(encoded[: int(len(encoded) * share)])


def test_an_unknown_decoder_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown decoder 'jpeg'; known: pillow"):
        etl.image_pipeline(8, decoder="jpeg")


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_what_else_pillow_raises_is_a_value_error(decoder: str) -> None:
    encoded = encode(Image.new("RGB", (6, 4))).copy()
    place = encoded.tobytes().index(b"IDAT") - 4
    encoded[place : place + 4] = 0  # Pillow takes what follows for a chunk, and raises SyntaxError
    with pytest.raises(ValueError, match=r"broken PNG file.*; remove or replace the file"):
        etl.stages.Decode(decoder).open(encoded)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_a_file_of_so_many_pixels_that_pillow_warns_is_refused(
    decoder: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    encoded = encode(Image.new("RGB", (6, 4)), format)
    with pytest.raises(ValueError, match=r"6 x 4 pixels .* 20; set PIL\.Image"):
        etl.stages.Decode(decoder).open(encoded)
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    with pytest.raises(ValueError, match=r"24 pixels.* of 20 .*; set PIL\.Image"):
        etl.stages.Decode(decoder).open(encoded)


def test_floating_point_pixels_are_refused_and_do_not_become_black() -> None:
    encoded = encode(Image.fromarray(np.full((4, 6), 0.5, np.float32)), "TIFF")
    with pytest.raises(RecordError, match="floating-point numbers, whose range is not known; convert it to 8 or"):
        next(iter(raw_batches(encoded)))


@pytest.mark.parametrize("value", [1 << 16, -1])
def test_integers_of_more_than_sixteen_bits_are_refused_and_do_not_wrap_around(value: int) -> None:
    encoded = encode(Image.fromarray(np.full((4, 6), value, np.int32)), "TIFF")
    with pytest.raises(RecordError, match="integers of more than 16 bits; convert it to 8 or 16 bits"):
        next(iter(raw_batches(encoded)))


def raw_batches(encoded: np.ndarray) -> etl.RawIterator:
    return etl.RawIterator([{"features": encoded, "label": 0}], etl.Pipeline([etl.stages.Decode()]), batch_size=1)
