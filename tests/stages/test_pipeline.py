"""Pipelines: splitting, names and fingerprints, and the arithmetic of stages."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import etl
from etl.sources import Record, RecordError
from etl.stages import ChannelsFirst, Decode, Normalise, RandomResizedCrop, Resize
from etl.stages.stage import AnyStage, describe_stage

FLOAT32 = np.finfo(np.float32)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
# The preset for photographs, after decoding.
FROM_PIXELS = etl.Pipeline([Resize(8, 8), ChannelsFirst(), Normalise()])


def doubled(record: Record) -> Record:
    return {**record, "features": np.asarray(record["features"]) * 2}


def shifted(record: Record) -> Record:
    return {**record, "features": np.asarray(record["features"]) + 1}


def test_until_and_after_cut_behind_the_named_stage() -> None:
    whole = etl.image_pipeline(8)
    assert whole.names == ("decode", "resize", "channels_first", "normalise")
    assert whole.until("resize").names == ("decode", "resize")
    assert whole.after("resize").names == ("channels_first", "normalise")
    assert whole.after("normalise").names == ()


def test_a_remainder_remembers_what_went_before_it() -> None:
    whole = etl.image_pipeline(8)
    for name in whole.names:
        assert whole.after(name).preceding_fingerprint == whole.until(name).fingerprint
        assert whole.after(name).fingerprint == whole.fingerprint
    assert whole.after("decode").after("resize").preceding_fingerprint == whole.until("resize").fingerprint
    assert whole.after("decode").until("resize").fingerprint == whole.until("resize").fingerprint


@given(st.sampled_from(["resize", "channels_first", "normalise"]), st.integers(1, 50), st.integers(1, 50))
def test_both_parts_of_a_cut_do_the_work_of_the_whole(name: str, height: int, width: int) -> None:
    record = {"features": PIXELS[:height, : min(width, 30)], "label": 3}
    parts = FROM_PIXELS.after(name)(FROM_PIXELS.until(name)(record))
    assert parts["features"].tobytes() == FROM_PIXELS(record)["features"].tobytes()
    assert parts["label"] == 3


def test_an_unknown_stage_lists_the_stages() -> None:
    message = "no stage 'crop'; it has decode, resize, channels_first, normalise"
    for cut in (etl.image_pipeline(8).until, etl.image_pipeline(8).after):
        with pytest.raises(ValueError, match=message):
            cut("crop")


def test_repeated_names_are_refused_before_and_after_a_cut() -> None:
    with pytest.raises(ValueError, match="two stages are called resize; a pipeline is split by name"):
        etl.Pipeline([Resize(8, 8), Resize(4, 4)])
    with pytest.raises(ValueError, match="two stages are called doubled"):
        etl.Pipeline([doubled], preceding=[doubled])


def test_the_fingerprints_of_the_presets_never_change() -> None:
    # Stores contain them: changing one makes every existing store of every user unreadable.
    assert etl.Pipeline([]).fingerprint == "4f53cda18c2baa0c"
    assert etl.image_pipeline(224).fingerprint == "896dc3515e78d48c"
    assert etl.image_pipeline(224).until("resize").fingerprint == "8add62929f6db1e4"


def test_the_fingerprint_changes_with_every_setting_and_with_the_order() -> None:
    def versioned(record: Record) -> Record:
        return record

    pipelines: list[Callable[[], etl.Pipeline]] = [
        lambda: etl.Pipeline([]),
        lambda: etl.image_pipeline(8),
        lambda: etl.image_pipeline((8, 9)),
        lambda: etl.image_pipeline((9, 8)),
        lambda: etl.Pipeline([Decode(), Resize(8, 8), ChannelsFirst(), Normalise((0.5,) * 3, (0.5,) * 3)]),
        lambda: etl.Pipeline([Decode(), Resize(8, 8), Normalise(), ChannelsFirst()]),
        lambda: etl.Pipeline([Decode("turbo")]),
        lambda: etl.Pipeline([Decode("pillow", (8, 8))]),
        lambda: etl.Pipeline([Decode("pillow", (8, 9))]),
        lambda: etl.Pipeline([Decode()]),
        lambda: etl.Pipeline([Resize(8, 8)]),
        lambda: etl.Pipeline([Resize(8, 8, "opencv")]),
        lambda: etl.Pipeline([doubled]),
        lambda: etl.Pipeline([shifted]),
        lambda: etl.Pipeline([versioned]),
    ]
    before = [make().fingerprint for make in pipelines]
    assert len(set(before)) == len(pipelines)
    assert before == [make().fingerprint for make in pipelines]
    versioned.version = 2  # type: ignore[attr-defined]
    assert etl.Pipeline([versioned]).fingerprint not in before


def test_functions_are_stages_named_as_they_are() -> None:
    pipeline = etl.Pipeline([shifted, doubled])
    assert pipeline.names == ("shifted", "doubled")
    assert pipeline({"features": 1})["features"] == 4
    assert pipeline.after("shifted")({"features": 1})["features"] == 2


def test_a_stage_may_have_settings_of_any_name() -> None:
    class Pad:
        name = "pad"

        def __init__(self, before: int, after: int) -> None:
            self.before, self.after = before, after

        def __call__(self, record: Record) -> Record:
            return {**record, "features": np.pad(record["features"], (self.before, self.after))}

    assert etl.Pipeline([Pad(1, 2), doubled])({"features": np.ones(1)})["features"].tolist() == [0, 2, 0, 0]


def test_a_stage_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a name"):
        etl.Pipeline([object()])  # type: ignore[list-item]


def test_a_failing_stage_is_named_with_its_record_and_file(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "cat").mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "cat" / f"{number}.png")
    (tmp_path / "cat" / "1.png").write_bytes(b"not a picture")
    source = etl.ImageFolder(tmp_path)
    claim = r"record 1 of .*\(cat/1\.png\): failed at stage 'decode': not an image that Pillow knows"
    with pytest.raises(RecordError, match=claim) as presaving:
        etl.records(source, etl.image_pipeline(4))[1]
    with pytest.raises(RecordError, match=claim) as loading:
        list(etl.RawIterator(source, etl.image_pipeline(4), batch_size=3))
    for error in (presaving.value, loading.value):
        assert (error.record, error.stage, error.name) == (1, "decode", "cat/1.png")
        assert isinstance(error.__cause__, ValueError)


def test_a_record_error_survives_pickling() -> None:
    error = RecordError("photos", 17, "decode", "cat/17.jpg", "truncated")
    again = copy.copy(error)
    assert str(again) == str(error) == "record 17 of photos (cat/17.jpg): failed at stage 'decode': truncated"


def test_resize_is_pillows_bilinear() -> None:
    resized = Resize(9, 17)({"features": PIXELS})["features"]
    expected = np.asarray(Image.fromarray(PIXELS).resize((17, 9), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resized, expected)
    assert Resize(9, 17)({"features": PIXELS[:, :, 0]})["features"].shape == (9, 17)


@pytest.mark.parametrize("stage", [Resize(4, 4), RandomResizedCrop(4, 4, scale=(1, 1))])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pixels_that_pillow_cannot_resize_are_described(dtype: Any, stage: Any) -> None:
    pipeline = etl.Pipeline([stage])
    message = rf"'{stage.name}': features are {np.dtype(dtype)} of shape \(\d, \d, 9\); Pillow resizes uint8"
    with pytest.raises(RecordError, match=message):
        list(etl.RawIterator([{"features": np.zeros((3, 8, 9), dtype), "label": 0}], pipeline, 1))


@pytest.mark.parametrize(("height", "width"), [(0, 8), (8, -1)])
def test_a_size_below_one_is_refused(height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"cannot be resized to {height} x {width}"):
        etl.image_pipeline((height, width))


def test_channels_first_moves_the_last_axis_to_the_front() -> None:
    features = ChannelsFirst()({"features": PIXELS})["features"]
    assert features.shape == (3, 40, 30)
    assert (features[1] == PIXELS[:, :, 1]).all()
    assert ChannelsFirst()({"features": PIXELS[:, :, 0]})["features"].shape == (1, 40, 30)
    with pytest.raises(ValueError, match=r"features have shape \(40,\)"):
        ChannelsFirst()({"features": PIXELS[:, 0, 0]})


@given(st.integers(0, 255), st.floats(0, 1), st.floats(0.01, 2))
def test_normalise_is_the_formula_within_float32(value: int, mean: float, std: float) -> None:
    features = np.full((1, 2, 2), value, np.uint8)
    computed = Normalise((mean,), (std,))({"features": features})["features"]
    assert computed.dtype == np.float32
    # Both constants are rounded once, and so are difference and product: four roundings, in units of the difference.
    rounding = 4 * FLOAT32.eps * max(value, 255 * mean) / (255 * std) + FLOAT32.tiny
    np.testing.assert_allclose(computed, (value / 255 - mean) / std, rtol=0, atol=rounding)


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (0.0,)), ((0.5,), (-1.0,))])
def test_wrong_statistics_are_refused(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="std"):
        Normalise(mean, std)


def test_statistics_may_be_arrays_as_they_are_measured() -> None:
    pixels = PIXELS / 255
    mean: Any = pixels.mean(axis=(0, 1))
    std: Any = pixels.std(axis=(0, 1), keepdims=True)
    measured, written = Normalise(mean, std), Normalise(tuple(mean.tolist()), tuple(std.ravel().tolist()))
    assert measured == written
    assert etl.Pipeline([measured]).fingerprint == etl.Pipeline([written]).fingerprint
    found = measured({"features": PIXELS.transpose(2, 0, 1)})["features"]
    np.testing.assert_allclose([found.mean(axis=(1, 2)), found.std(axis=(1, 2))], [[0] * 3, [1] * 3], atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4), ()])
def test_normalise_says_which_shape_it_wants(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"features have shape {re.escape(str(shape))}, not \(3, height, width\)"):
        Normalise()({"features": np.zeros(shape, np.uint8)})


def test_no_stage_changes_its_record() -> None:
    record = {"features": PIXELS.copy(), "label": 7}
    record["features"].flags.writeable = False
    for stage in FROM_PIXELS.stages:
        before = {name: np.array(value) for name, value in record.items()}
        after = stage(record)
        assert set(record) == set(before)
        np.testing.assert_array_equal(record["features"], before["features"])
        record = dict(after)
    assert record["label"] == 7


def test_settings_of_every_kind_of_stage_are_in_the_fingerprint() -> None:
    class Crop:
        name = "crop"

        def __init__(self, size: object) -> None:
            self.size = size

        def __call__(self, record: Record) -> Record:
            return record

        def cut(self, record: Record) -> Record:
            return record

    class Slotted:  # as attrs makes them
        __slots__ = ("size",)
        name = "slotted"

        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, record: Record) -> Record:
            return record

    class Fields(NamedTuple):
        size: int

        @property
        def name(self) -> str:
            return "fields"

        def __call__(self, record: Record) -> Record:
            return record

    def scale_by(factor: float) -> Callable[[Record], Record]:
        def scale(record: Record) -> Record:
            return {**record, "features": record["features"] * factor}

        return scale

    def scale_by_default(factor: float) -> Callable[[Record], Record]:
        return lambda record, factor=factor: {**record, "features": record["features"] * factor}

    def scale_by_keyword(factor: float) -> Callable[[Record], Record]:
        def scale(record: Record, *, factor: float = factor) -> Record:
            return {**record, "features": record["features"] * factor}

        return scale

    def scale_partially(*arguments: float, **keywords: float) -> Any:
        stage = functools.partial(scale_by, *arguments, **keywords)
        stage.name = "scaled"  # type: ignore[attr-defined]
        return stage

    pairs: list[tuple[AnyStage, AnyStage]] = [
        (Crop(10), Crop(20)),
        (Crop(10).cut, Crop(20).cut),
        (Slotted(10), Slotted(20)),
        (Fields(10), Fields(20)),
        (scale_by(2), scale_by(3)),
        (scale_by_default(2), scale_by_default(3)),
        (scale_by_keyword(2), scale_by_keyword(3)),
        (scale_partially(2), scale_partially(3)),
        (scale_partially(factor=2), scale_partially(factor=3)),
        (Crop(np.ones(2)), Crop(np.zeros(2))),
    ]
    for first, second in pairs:
        assert etl.Pipeline([first]).fingerprint != etl.Pipeline([second]).fingerprint
    assert etl.Pipeline([Crop(np.int64(10))]).fingerprint == etl.Pipeline([Crop(10)]).fingerprint
    without_settings: list[Any] = [Greedy(), doubled, abs]
    for stage in without_settings:
        assert describe_stage(stage)["settings"] == {}


def test_a_stage_with_a_setting_that_identifies_nothing_is_refused_when_it_is_presaved() -> None:
    class Lookup:
        name = "lookup"

        def __init__(self) -> None:
            self.table = object()

        def __call__(self, record: Record) -> Record:
            return record

    pipeline = etl.Pipeline([Lookup()])
    assert repr(pipeline) == "Pipeline(lookup)"
    with pytest.raises(TypeError, match="stage 'lookup' cannot be identified"):
        etl.records([], pipeline)


class Greedy:
    """A stage that runs out of memory."""

    name = "greedy"

    def __call__(self, record: Record) -> Record:
        raise MemoryError


class GreedySource:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Record:
        raise MemoryError("no 5 GB")


def test_a_record_that_memory_does_not_suffice_for_is_named_with_the_stage() -> None:
    made = etl.records([{"features": PIXELS}] * 3, etl.Pipeline([Greedy()]))
    with pytest.raises(MemoryError, match=r"record 2 of .*: failed at stage 'greedy': MemoryError"):
        made[2]
    with pytest.raises(MemoryError, match=r"record 1 of .*: failed at stage 'read': no 5 GB"):
        etl.records(GreedySource(), etl.Pipeline([]))[1]
