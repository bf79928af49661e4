"""A crop that is decoded alone has the pixels of the whole image, and its errors."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import etl
from etl.images import jpeg_crop, turbo
from etl.sources import RecordError
from tests.image_files import encode, orientation
from tests.turbojpeg import turbojpeg

FLIPPED_BYTES, MUTATIONS = 3, 400


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> jpeg_crop.TurboJpeg:
    """The library, in use."""
    found = jpeg_crop.TurboJpeg(turbojpeg())
    monkeypatch.setattr(jpeg_crop, "find_library", lambda: found)
    return found


def picture(height: int = 187, width: int = 131, mode: str = "RGB") -> Image.Image:
    """Return an image whose neighbouring pixels differ, more in its lower half."""
    rng = np.random.default_rng(height * width)
    pixels = np.linspace(0, 255, height * width * 3).reshape(height, width, 3)
    noise = rng.normal(0, 40, pixels.shape) * np.linspace(0.2, 1, height)[:, None, None]
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8)).convert(mode)


def assert_crops_are_exact(encoded: np.ndarray, count: int = 60) -> None:
    whole = turbo.decode(encoded)
    height, width = whole.shape[:2]
    rng = np.random.default_rng(0)
    regions = [(0, 0, height, width), (0, 0, 1, 1), (height - 1, width - 1, 1, 1)]
    for _ in range(count):
        rows, columns = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        regions.append((int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1)), rows, columns))
    for region in regions:
        row, column, rows, columns = region
        pixels, is_crop = jpeg_crop.decode(encoded, lambda *_, region=region: region)
        assert is_crop
        np.testing.assert_array_equal(pixels, whole[row : row + rows, column : column + columns], str(region))


@pytest.mark.parametrize("size", [(187, 131), (64, 48), (33, 200), (9, 7)], ids=str)
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_every_crop_has_the_pixels_of_the_whole(subsampling: str, progressive: bool, size: tuple[int, int]) -> None:
    assert_crops_are_exact(encode(picture(*size), "JPEG", subsampling=subsampling, progressive=progressive))


@pytest.mark.parametrize("restart", [{"restart_marker_rows": 1}, {"restart_marker_blocks": 3}], ids=str)
def test_restart_markers_change_nothing(restart: dict[str, int]) -> None:
    assert_crops_are_exact(encode(picture(), "JPEG", **restart))


def test_grey_becomes_rgb() -> None:
    assert_crops_are_exact(encode(picture(mode="L"), "JPEG"))


@pytest.mark.parametrize("number", range(1, 9))
def test_a_crop_of_a_turned_photograph_is_that_of_the_upright_one(number: int) -> None:
    assert_crops_are_exact(encode(picture(), "JPEG", exif=orientation(number)))


def test_photographs_have_their_pixels(photographs: Path) -> None:
    for path in sorted(photographs.rglob("*.jpg"))[:20]:
        assert_crops_are_exact(np.fromfile(path, np.uint8), 10)


@pytest.mark.parametrize("format", ["CMYK", "PNG"])
def test_other_files_are_decoded_whole(format: str) -> None:
    encoded = encode(picture(mode="CMYK"), "JPEG") if format == "CMYK" else encode(picture(), "PNG")
    pixels, is_crop = jpeg_crop.decode(encoded, lambda height, width: (0, 0, 5, 5))
    assert not is_crop
    np.testing.assert_array_equal(pixels, turbo.decode(encoded))


def outcome(decode: Any) -> Any:
    try:
        return decode()
    except (OSError, ValueError) as error:
        return repr(error)


@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # about damaged EXIF data
def test_a_damaged_file_gives_the_pixels_of_the_whole_or_its_error(progressive: bool) -> None:
    rng, seen = np.random.default_rng(7), Counter[str]()
    intact = encode(picture(), "JPEG", progressive=progressive, exif=orientation(6))
    for _ in range(MUTATIONS):
        encoded = intact.copy()
        encoded[rng.integers(2, len(encoded), FLIPPED_BYTES)] = rng.integers(256, size=FLIPPED_BYTES)
        encoded = encoded[: rng.choice([len(encoded), len(encoded), len(encoded) * 3 // 4])]
        whole = outcome(lambda encoded=encoded: turbo.decode(encoded))
        region: tuple[int, ...] = ()

        def choose(height: int, width: int) -> tuple[int, int, int, int]:
            nonlocal region
            region = height // 5, width // 3, height // 2, width // 2
            return region

        found = outcome(lambda encoded=encoded, choose=choose: jpeg_crop.decode(encoded, choose))
        if isinstance(found, str):
            assert found == whole
            seen["error"] += 1
        elif not found[1]:
            np.testing.assert_array_equal(found[0], whole)
            seen["whole"] += 1
        elif isinstance(whole, str):
            seen["damage below the crop"] += 1
        else:
            # Of damaged blocks, the two libraries may make other pixels: one may have been built without SIMD.
            all_of_it, is_part = jpeg_crop.decode(encoded, lambda height, width: (0, 0, height, width))
            row, column, rows, columns = region
            if is_part:
                np.testing.assert_array_equal(found[0], all_of_it[row : row + rows, column : column + columns])
            seen["crop" if is_part else "damage seen in the whole"] += 1
    assert min(seen["error"], seen["whole"], seen["crop"]) > 0
    assert seen["damage below the crop"] <= MUTATIONS // 20


def pipeline() -> etl.Pipeline:
    return etl.Pipeline(
        [etl.stages.Decode("turbo"), etl.stages.RandomResizedCrop(40, 48, "opencv"), etl.stages.RandomFlip()]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    for number in range(12):
        encode(picture(150 + number, 200), "JPEG", exif=orientation(number)).tofile(
            tmp_path / "class" / f"{number:02}.jpg"
        )
    return tmp_path


def batches(folder: Path, threads: int = 0, **options: Any) -> list[np.ndarray]:
    iterator: Any = etl.RawIterator(etl.ImageFolder(folder), pipeline(), 4, seed=3, **options)
    if threads:
        iterator = etl.AsyncIterator(iterator, threads=threads)
    with iterator:
        return [np.array(batch.features) for _ in range(2) for batch in iterator]


@pytest.mark.parametrize("threads", [0, 4])
def test_batches_are_the_same_with_and_without_the_library(
    folder: Path, threads: int, library: jpeg_crop.TurboJpeg, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    decode = library.decode
    monkeypatch.setattr(jpeg_crop.TurboJpeg, "decode", lambda _, *args: calls.append(args) or decode(*args))
    cropped = batches(folder, threads)
    assert len(calls) == 24
    monkeypatch.setattr(jpeg_crop, "find_library", lambda: None)
    np.testing.assert_array_equal(cropped, batches(folder))
    assert len(calls) == 24


def test_threads_decode_at_once(library: jpeg_crop.TurboJpeg) -> None:
    files = [encode(picture(100 + number, 150), "JPEG") for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(assert_crops_are_exact, files * 3))


def test_a_truncated_file_fails_at_decode(folder: Path) -> None:
    path = folder / "class" / "05.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(RecordError, match=r"\(class/05.jpg\): failed at stage 'decode': .* truncated"):
        batches(folder)
    with pytest.warns(UserWarning, match="left out 1 of 12 records"):
        batches(folder, on_error="skip")


def test_a_library_that_was_chosen_has_to_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(jpeg_crop.PATH_VARIABLE, "/nowhere/libturbojpeg.so")
    jpeg_crop.find_library.cache_clear()
    for need in (jpeg_crop.find_library, lambda: batches(folder)):
        with pytest.raises(ImportError, match=r"FAIR_ETL_TURBOJPEG=/nowhere/libturbojpeg\.so is not TurboJPEG 3"):
            need()
    monkeypatch.setenv(jpeg_crop.PATH_VARIABLE, turbojpeg())
    assert jpeg_crop.find_library() is not None
    jpeg_crop.find_library.cache_clear()


def test_a_library_with_other_pixels_is_not_used(library: jpeg_crop.TurboJpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.is_exact()
    monkeypatch.setattr(jpeg_crop, "MARGIN", 0)
    assert not library.is_exact()
