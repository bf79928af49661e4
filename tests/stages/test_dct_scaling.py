"""Scaling while decoding: never below the size asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import etl
from etl.stages import Decode
from tests.image_files import encode
from tests.image_files import orientation as exif_of


def plain(height: int, width: int) -> Image.Image:
    return Image.new("RGB", (width, height), (200, 100, 50))


SIDES = st.integers(1, 150)


@settings(max_examples=60)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(1, 8), st.sampled_from(["pillow", "turbo"]))
def test_both_sides_are_at_least_what_was_asked_for_or_what_the_file_has(
    height: int, width: int, least_height: int, least_width: int, orientation: int, decoder: str
) -> None:
    encoded = encode(plain(height, width), "JPEG", exif=exif_of(orientation))
    upright = (height, width) if orientation < 5 else (width, height)
    found = Decode(decoder, (least_height, least_width))({"features": encoded})["features"].shape[:2]
    assert Decode(decoder)({"features": encoded})["features"].shape[:2] == upright
    assert found[0] >= min(least_height, upright[0])
    assert found[1] >= min(least_width, upright[1])


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.parametrize(
    ("at_least", "expected"), [((41, 20), (80, 120)), ((30, 30), (40, 60)), ((20, 20), (20, 30)), ((1, 1), (10, 15))]
)
def test_it_is_the_smallest_of_an_eighth_a_quarter_and_half(
    decoder: str, at_least: tuple[int, int], expected: tuple[int, int]
) -> None:
    pixels = Decode(decoder, at_least)({"features": encode(plain(80, 120), "JPEG")})["features"]
    assert pixels.shape == (*expected, 3)
    assert abs(pixels.astype(int) - [200, 100, 50]).max() < 5


@settings(max_examples=60)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(1, 8))
@example(95, 96, 24, 24, 1)
@example(96, 95, 12, 12, 6)
def test_both_decoders_give_the_same_pixels(
    height: int, width: int, least_height: int, least_width: int, orientation: int
) -> None:
    noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    encoded = encode(Image.fromarray(noise), "JPEG", exif=exif_of(orientation))
    pillow, turbo = (
        Decode(decoder, (least_height, least_width))({"features": encoded})["features"]
        for decoder in ("pillow", "turbo")
    )
    np.testing.assert_array_equal(pillow, turbo)


def test_stores_of_other_scales_are_refused() -> None:
    # Up to version 1 "turbo" also took five eighths.
    assert (Decode("turbo", (4, 4)).version, Decode("turbo").version, Decode("pillow", (4, 4)).version) == (2, 1, 1)


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_a_format_that_cannot_be_scaled_keeps_its_size(decoder: str) -> None:
    assert Decode(decoder, (4, 4))({"features": encode(plain(80, 120), "PNG")})["features"].shape == (80, 120, 3)


def test_a_pipeline_asks_for_the_size_that_it_resizes_to(photographs: Path) -> None:
    pipeline = etl.image_pipeline((30, 40), dct_scaling=True)
    assert pipeline.stages[0] == Decode("pillow", (30, 40))
    scaled, whole = (
        next(iter(etl.RawIterator(etl.ImageFolder(photographs), each, 8))).features
        for each in (pipeline, etl.image_pipeline((30, 40)))
    )
    assert scaled.shape == whole.shape
    assert 0 < np.abs(scaled - whole).mean() < 0.1  # other pixels of the same photographs


@pytest.mark.parametrize("at_least", [(0, 4), (4,), (4, 4, 3), (-1, 4)])
def test_a_size_that_no_image_has_is_refused(at_least: Any) -> None:
    with pytest.raises(ValueError, match="at_least is a height and a width of at least 1 pixel, not "):
        Decode("pillow", at_least)
