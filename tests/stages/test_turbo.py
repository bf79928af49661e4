"""The decoder "turbo" gives the pixels of "pillow" for every kind of file, and fails on the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import etl
from etl.images import turbo
from tests.image_files import XMP, encode, orientation
from tests.programs import run_python

# Python treats such a package as missing.
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
import etl
pipeline = etl.Pipeline([etl.stages.Decode(sys.argv[2]), etl.stages.Resize(8, 8, sys.argv[3])])
iterator = etl.RawIterator(etl.ImageFolder(sys.argv[4]), pipeline, on_error="skip")
list(etl.AsyncIterator(iterator, threads=2))
"""


def picture(height: int = 87, width: int = 131) -> Image.Image:
    """Smooth colours with edges, as a photograph has."""
    small = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def decode(encoded: np.ndarray, decoder: str, at_least: tuple[int, int] | None = None) -> np.ndarray:
    pixels: np.ndarray = etl.stages.Decode(decoder, at_least)({"features": encoded})["features"]
    assert pixels.dtype == np.uint8
    return pixels


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each file that libjpeg-turbo decoded, so that no test passes because Pillow did it all."""
    import simplejpeg

    decoded: list[int] = []

    def counted(encoded: np.ndarray, *others: Any, **options: Any) -> Any:
        decoded.append(len(encoded))
        return original(encoded, *others, **options)

    original = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", counted)
    return decoded


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0", "keep_rgb"])
def test_jpegs_of_every_subsampling_have_pillows_pixels(subsampling: str, progressive: bool, calls: list[int]) -> None:
    # Pillow writes no 4:4:0, which cameras make of 4:2:2 that they turn without decoding: the sampling is exchanged.
    options = (
        {"keep_rgb": True} if subsampling == "keep_rgb" else {"subsampling": subsampling.replace("4:4:0", "4:2:2")}
    )
    encoded = encode(picture(64, 64), "JPEG", progressive=progressive, **options).copy()
    if subsampling == "4:4:0":
        size_and_sampling = b"\x08\x00\x40\x00\x40\x03\x01\x21"
        encoded[encoded.tobytes().index(size_and_sampling) + len(size_and_sampling) - 1] = 0x12
    np.testing.assert_array_equal(decode(encoded, "turbo"), decode(encoded, "pillow"))
    assert len(calls) == 1


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_jpegs_have_pillows_pixels(mode: str, calls: list[int]) -> None:
    encoded = encode(picture().convert(mode), "JPEG")
    np.testing.assert_array_equal(decode(encoded, "turbo"), decode(encoded, "pillow"))
    assert len(calls) == (mode == "L")


# For the stored sides, 60 x 100: both decoders halve them, and would not if the sides were exchanged.
@pytest.mark.parametrize("stored_at_least", [None, (29, 20), (10, 45)])
@pytest.mark.parametrize("number", range(10))
def test_every_exif_orientation_is_turned_as_by_pillow(
    number: int, stored_at_least: tuple[int, int] | None, calls: list[int]
) -> None:
    encoded = encode(picture(60, 100), "JPEG", quality=95, exif=orientation(number))
    is_sideways = number in range(5, 9)
    at_least = stored_at_least[::-1] if stored_at_least is not None and is_sideways else stored_at_least
    found = decode(encoded, "turbo", at_least)
    np.testing.assert_array_equal(found, decode(encoded, "pillow", at_least))
    sides = (60, 100) if at_least is None else (30, 50)
    assert found.shape[:2] == (sides[::-1] if is_sideways else sides)
    assert found.flags.c_contiguous
    assert len(calls) == 1


@pytest.mark.parametrize(
    "exif", [b"", b"Exif\0\0this is no TIFF header", orientation(8)], ids=["no EXIF", "damaged EXIF", "another EXIF"]
)
def test_an_orientation_in_xmp_data_counts_as_for_pillow(exif: Any, calls: list[int]) -> None:
    encoded = encode(picture(), "JPEG", xmp=XMP, exif=exif)
    np.testing.assert_array_equal(decode(encoded, "turbo"), decode(encoded, "pillow"))
    assert len(calls) == 1


@settings(max_examples=80)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # about damaged EXIF data
def test_damaged_files_give_pillows_pixels_or_pillows_error(data: st.DataObject) -> None:
    encoded = encode(picture(24, 40), "JPEG", exif=orientation(6)).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(2, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    encoded = encoded[: data.draw(st.sampled_from([len(encoded), len(encoded) // 2, len(encoded) - 9]))]
    outcomes: list[Any] = []
    for decoder in ("pillow", "turbo"):
        try:
            outcomes.append(decode(encoded, decoder))
        except (OSError, ValueError) as error:
            outcomes.append(repr(error))
    np.testing.assert_array_equal(outcomes[0], outcomes[1])


@pytest.mark.parametrize(
    ("package", "decoder", "resizer", "message"),
    [
        ("simplejpeg", "turbo", "pillow", "decoder 'turbo' needs simplejpeg: pip install 'fair-etl[fast]'"),
        ("cv2", "pillow", "opencv", "resizer 'opencv' needs OpenCV: pip install 'fair-etl[fast]'"),
    ],
)
def test_a_missing_library_is_an_import_error_and_no_skipped_record(
    photographs: Path, package: str, decoder: str, resizer: str, message: str
) -> None:
    ended = run_python("-c", WITHOUT, package, decoder, resizer, photographs)
    assert f"ImportError: {message}" in ended.stderr.splitlines()[-1]
    assert ended.returncode == 1


def test_opencv_resizes_grey_and_colour_and_leaves_the_cores_to_the_loader() -> None:
    pixels = np.asarray(picture())
    assert turbo.resize(pixels, 20, 30).shape == (20, 30, 3)
    assert turbo.resize(pixels[:, :, 0], 20, 30).shape == (20, 30)
    assert turbo.import_cv2().getNumThreads() == 1


def test_a_small_file_of_very_many_pixels_is_refused_before_memory_is_taken_for_them(calls: list[int]) -> None:
    encoded = encode(picture(16, 16), "JPEG").copy()
    place = encoded.tobytes().index(b"\xff\xc0") + 5
    encoded[place : place + 4] = 0xFF  # height and width
    for decoder in ("turbo", "pillow"):
        with pytest.raises(ValueError, match=r"4294836225 pixels.* exceeds limit"):
            etl.stages.Decode(decoder).open(encoded)
    assert calls == []


def test_a_file_of_very_many_scans_is_refused_before_it_is_decoded(calls: list[int]) -> None:
    content = encode(picture(16, 16), "JPEG", progressive=True).tobytes()
    place = content.index(b"\xff\xc2") + 5
    content = content[:place] + (8000).to_bytes(2, "big") * 2 + content[place + 4 :]
    last = content.rindex(b"\xff\xda")
    encoded = np.frombuffer(content[:-2] + content[last:-2] * 100 + content[-2:], np.uint8)
    for decoder in ("turbo", "pillow"):
        with pytest.raises(ValueError, match=r"1\d\d scans of 64,000,000 pixels, which is not a photograph"):
            etl.stages.Decode(decoder).open(encoded)
    assert calls == []


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


SCANS = b"\xff\xda" * 30_000
ADDED: dict[str, tuple[bytes, bytes]] = {  # behind the beginning of the image, and behind its end
    "zeros behind the end": (b"", bytes(50_000)),
    "scans behind the end": (b"", SCANS * 10),
    "an image behind the end": (b"", b"\xff\xd8" + segment(0xE1, b"Exif\0\0") + SCANS * 5 + b"\xff\xd9"),
    "scans in APP segments": (segment(0xE5, SCANS) * 10, b""),
    "scans in a comment": (segment(0xFE, SCANS) * 10, b""),
    "15 MB of APP segments": (
        b"".join(segment(0xEB, bytes([n]) * 65_000) for n in range(231)) + segment(0xE5, SCANS),
        b"",
    ),
    "EXIF data in another segment": (segment(0xFE, segment(0xE1, bytes(orientation(3).tobytes()))), b""),
    "bytes between segments": (segment(0xFE, b"") + b"\x00\x01\x02", b""),
    "a restart marker between segments": (b"\xff\xd3", b""),
    "padding": (b"\xff" * 7, b""),
}


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_what_else_is_in_a_jpeg_file_makes_it_neither_unreadable_nor_another(
    decoder: str, added: str, progressive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 87 * 131)  # so that 20 scans are allowed
    plain = encode(picture(), "JPEG", exif=orientation(6), progressive=progressive).tobytes()
    start, end = ADDED[added]
    encoded = np.frombuffer(plain[:2] + start + plain[2:] + end, np.uint8)
    np.testing.assert_array_equal(decode(encoded, decoder), decode(np.frombuffer(plain, np.uint8), "pillow"))


@pytest.mark.parametrize("hidden", [b"", segment(0xE5, b"\xff\xd9"), b"\xff\x05\xff\xff", b"\xff\xd0", b"\xff" * 9])
@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_scans_are_counted_wherever_libjpeg_finds_them(
    decoder: str, hidden: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 87 * 131)
    content = encode(picture(), "JPEG", progressive=True).tobytes()
    last = content.rindex(b"\xff\xda")
    encoded = np.frombuffer(content[:-2] + (hidden + content[last:-2]) * 30 + content[-2:], np.uint8)
    with pytest.raises(ValueError, match=r"[34]\d scans of 11,397 pixels, which is not a photograph"):
        decode(encoded, decoder)
