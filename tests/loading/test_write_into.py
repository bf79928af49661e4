"""Stages that write straight into a batch, or leave the copy between out, give the bits that they give alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from etl.sources import Record, RecordError
from etl.stages import ChannelsFirst, Decode, Normalise, RandomFlip, RandomResizedCrop, RecordRng, Resize
from etl.stages.cursor import ThreadCursor
from etl.stages.stage import AnyStage

RNG = RecordRng(3, 2, 1)
RESIZERS = [("pillow", "pillow"), ("turbo", "opencv"), ("pillow", "opencv"), ("turbo", "pillow")]


class Doubled(Normalise):
    """Changes the call alone."""

    def __call__(self, record: Record) -> Record:
        normalised = super().__call__(record)
        return {**normalised, "features": 2 * normalised["features"]}


def one_by_one(stages: Sequence[AnyStage], record: Record) -> np.ndarray:
    """What each stage makes in a pipeline of its own, which has nothing to put together."""
    for place, stage in enumerate(stages):
        record = etl.Pipeline([stage], preceding=stages[:place])(record, RNG)
    features: np.ndarray = record["features"]
    return features


def written(pipeline: etl.Pipeline, record: Record, like: np.ndarray) -> np.ndarray:
    out = {"features": np.zeros((3, *like.shape), like.dtype), "label": np.zeros(3, np.int64)}
    pipeline.write_into(record, out, 1, RNG, ThreadCursor())
    assert out["label"][1] == record["label"]
    assert not out["features"][[0, 2]].any()
    found: np.ndarray = out["features"][1]
    return found


@pytest.mark.parametrize(("decoder", "resizer"), RESIZERS)
@pytest.mark.parametrize("last", ["decode", "resize", "channels_first", "normalise", "random_resized_crop"])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_pipeline_gives_the_bits_of_its_stages_alone(
    photographs: Path, decoder: str, resizer: str, last: str, flipped: bool
) -> None:
    flip = [RandomFlip(1.0)] if flipped else []
    stages: list[AnyStage] = [Decode(decoder), *flip, Resize(20, 30, resizer), ChannelsFirst(), Normalise()]
    if last == "random_resized_crop":
        stages = [Decode(decoder), *flip, RandomResizedCrop(20, 30, resizer)]
    pipeline = etl.Pipeline(stages).until(last)
    source = etl.ImageFolder(photographs)
    for number in (0, 17):
        expected = one_by_one(pipeline.stages, source[number])
        whole = pipeline(source[number], RNG)["features"]
        np.testing.assert_array_equal(whole, expected)
        assert whole.dtype == expected.dtype
        np.testing.assert_array_equal(written(pipeline, source[number], expected), expected)


@pytest.mark.parametrize(("decoder", "resizer"), RESIZERS)
def test_pixels_that_have_the_size_already_are_stored_as_they_are(
    photographs: Path, decoder: str, resizer: str
) -> None:
    record = etl.ImageFolder(photographs)[0]
    pixels = Decode(decoder)(record)["features"]
    pipeline = etl.Pipeline([Decode(decoder), Resize(*pixels.shape[:2], resizer)])
    np.testing.assert_array_equal(written(pipeline, record, pixels), pixels)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shapes", [((4, 6, 3), (6, 4, 3)), ((4, 6, 3), (1, 1, 3)), ((4, 6, 3), (4, 6))])
def test_a_record_of_another_shape_is_refused_even_with_as_many_pixels(
    shapes: Sequence[tuple[int, ...]], dtype: str
) -> None:
    records = [{"features": np.ones(shape, np.uint8), "label": 0} for shape in shapes]
    iterator = etl.RawIterator(records, etl.Pipeline([ChannelsFirst(), Normalise()]), 2, dtype=dtype)
    message = "record 1 of list: failed at stage 'collate': field 'features' has shape"
    with pytest.raises(RecordError, match=message if shapes[1] != (4, 6) else "stage 'normalise'"):
        list(iterator)


@pytest.mark.parametrize("resizer", ["pillow", "opencv"])
@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((9, 5), np.uint8), r"field 'features' has shape \(3, 3\), the records before it \(3, 3, 3\)"),
        (np.ones((3, 3, 3), np.float32), "field 'features' is float32, the records before it uint8"),
        (np.ones((3, 3), np.uint8), r"field 'features' has shape \(3, 3\), the records before it \(3, 3, 3\)"),
    ],
)
def test_the_result_of_a_resize_is_neither_broadcast_nor_cropped_to_fit(
    resizer: str, features: np.ndarray, message: str
) -> None:
    records = [{"features": np.ones((3, 3, 3), np.uint8), "label": 0}, {"features": features, "label": 0}]
    iterator = etl.RawIterator(records, etl.Pipeline([Resize(3, 3, resizer)]), 2)
    with pytest.raises(RecordError, match=f"record 1 of list: failed at stage 'collate': {message}"):
        list(iterator)


def test_a_subclass_that_changes_the_call_is_called() -> None:
    record = {"features": np.full((2, 2, 3), 200, np.uint8), "label": 1}
    (plain,) = etl.RawIterator([record], etl.Pipeline([ChannelsFirst(), Normalise()]), 1)
    (doubled,) = etl.RawIterator([record], etl.Pipeline([ChannelsFirst(), Doubled()]), 1)
    np.testing.assert_array_equal(doubled.features, 2 * plain.features)


class Inverted(Decode):
    """Changes the call alone."""

    def __call__(self, record: Record) -> Record:
        decoded = super().__call__(record)
        return {**decoded, "features": 255 - decoded["features"]}


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.parametrize("following", [Resize, RandomResizedCrop])
def test_a_subclass_of_decode_is_called_before_a_resize_too(photographs: Path, following: Any, decoder: str) -> None:
    record = etl.ImageFolder(photographs)[0]
    stages: list[AnyStage] = [Inverted(decoder), following(20, 30)]
    expected = one_by_one(stages, record)
    np.testing.assert_array_equal(etl.Pipeline(stages)(record, RNG)["features"], expected)
    np.testing.assert_array_equal(written(etl.Pipeline(stages), record, expected), expected)


@pytest.mark.parametrize(("decoder", "resizer"), RESIZERS)
@pytest.mark.parametrize("damage", ["truncated", "no image"])
def test_a_bad_file_fails_at_decode_even_if_fused_with_resize(
    photographs: Path, damage: str, decoder: str, resizer: str
) -> None:
    class Damaged(etl.ImageFolder):
        def __getitem__(self, index: int) -> Record:
            record = super().__getitem__(index)
            if index != 1:
                return record
            nothing = np.frombuffer(b"\xff\xd8\xff nothing", np.uint8)
            return {**record, "features": record["features"][:400] if damage == "truncated" else nothing}

    source = Damaged(photographs)
    for last in (Resize(8, 8, resizer), RandomResizedCrop(8, 8, resizer)):
        iterator = etl.RawIterator(source, etl.Pipeline([Decode(decoder), last]), 4)
        with pytest.raises(RecordError, match=rf"record 1 of .*\({source.files[1]}\): failed at stage 'decode'"):
            list(iterator)
