"""Sizes as people write them."""

from __future__ import annotations

import pytest

from etl.arguments import parse_nbytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("65536", 65536),
        ("1B", 1),
        ("2GB", 2 * 10**9),
        ("1.5 MB", 1_500_000),
        ("512MiB", 512 << 20),
        ("1k", 1000),
        (" 3TiB ", 3 << 40),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1XB", "2iB", "1e3", "two", "0", "0.1B"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size is"):
        parse_nbytes(text)
