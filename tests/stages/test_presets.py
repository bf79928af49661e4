"""The pipeline of a source: the default one or the user's, and the stage after which it is presaved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from etl.functions import pickle_function
from etl.stages.presets import default_pipeline, default_split, open_pipeline
from tests.user_modules import user_module

MY_DATA = """
    import etl

    def double(record):
        return {**record, "features": record["features"] * 2}

    def pipeline():
        return etl.Pipeline([double])

    def of_source(records):
        return etl.image_pipeline(4 * len(records))

    def of_other_name(source, size=3):
        return etl.image_pipeline(size)

    def fails():
        raise KeyError("size")

    def stages():
        return [double]

    def too_much(source, size):
        return etl.Pipeline([])
"""


@pytest.fixture
def my_data(tmp_path: Path) -> Iterator[None]:
    with user_module(tmp_path, "my_data", MY_DATA):
        yield


def opened(name: str | None, source: Any = (1, 2)) -> etl.Pipeline:
    return open_pipeline(name, source, 8, "pillow")


def test_without_a_name_it_is_the_default_of_the_source(photographs: Path) -> None:
    assert opened(None, etl.ImageFolder(photographs)).fingerprint == etl.image_pipeline(8).fingerprint
    for source in (etl.MapDataset([(1, 2)]), [{"features": np.ones(2)}]):
        assert default_pipeline(source, 8, "pillow").names == ()


def test_a_part_of_a_source_has_the_default_of_the_whole(photographs: Path) -> None:
    torch = pytest.importorskip("torch")
    source = etl.ImageFolder(photographs)
    part = torch.utils.data.Subset(torch.utils.data.Subset(source, range(30, 40)), [1, 0])
    (found,) = etl.RawIterator(part)
    (expected,) = etl.RawIterator([source[31], source[30]], etl.image_pipeline())
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.usefixtures("my_data")
def test_a_function_gets_the_source_if_it_has_a_parameter() -> None:
    assert opened("my_data:pipeline").names == ("double",)
    assert opened("my_data:of_source").fingerprint == etl.image_pipeline(8).fingerprint
    assert opened("my_data:of_other_name").fingerprint == etl.image_pipeline(3).fingerprint


def test_a_pickled_function_makes_one(tmp_path: Path) -> None:
    name = pickle_function(lambda source: etl.image_pipeline(len(source)), tmp_path / "function")
    assert opened(name).fingerprint == etl.image_pipeline(2).fingerprint


@pytest.mark.usefixtures("my_data")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "--pipeline my_data:fails raised KeyError: 'size'"),
        ("stages", "--pipeline my_data:stages returned a list; return an etl.Pipeline"),
        ("too_much", "--pipeline my_data:too_much raised ValueError: .*'size'; it can ask for source"),
        ("absent", "--pipeline my_data:absent: AttributeError"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        opened(f"my_data:{name}")


def test_only_stages_before_a_random_one_are_presaved() -> None:
    decode, resize, *rest = etl.image_pipeline(8).stages
    flip = etl.stages.RandomFlip()
    for stages, expected in [
        ([decode, resize, flip, *rest], "resize"),
        ([decode, flip, resize, *rest], "decode"),
        ([decode, *rest], "normalise"),
        ([flip, decode, resize], "read"),
        ([], "read"),
    ]:
        assert default_split(etl.Pipeline(stages)) == expected
