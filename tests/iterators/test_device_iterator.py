"""DeviceIterator: the batches of the iterator below it, finished by torch to the same bits; here on the CPU."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etl
from etl.iterators import BatchIterator
from etl.sources import Record, RecordError
from etl.stages import Cast, ChannelsFirst, Normalise, Resize

PIPELINE = etl.image_pipeline((9, 7))
NOTHING = etl.Pipeline([])
RECORDS = [{"features": np.full(2, number, np.float32), "label": number} for number in range(10)]


def raw(photographs: Path, pipeline: etl.Pipeline, **options: Any) -> etl.RawIterator:
    return etl.RawIterator(etl.ImageFolder(photographs), pipeline, 16, shuffle=True, seed=3, **options)


def bits(batches: Any) -> list[tuple[bytes, list[int], torch.dtype]]:
    return [
        (batch.features.contiguous().view(torch.uint8).numpy().tobytes(), batch.labels.tolist(), batch.features.dtype)
        for batch in batches
    ]


def numbered() -> etl.RawIterator:
    return etl.RawIterator(RECORDS, NOTHING, 2, shuffle=True)


def refuse_nine(record: Record) -> Record:
    if record["label"] == 9:
        raise ValueError("nine")
    return record


def test_an_error_is_raised_at_the_batch_that_it_belongs_to() -> None:
    iterator = etl.DeviceIterator(etl.RawIterator(RECORDS, etl.Pipeline([refuse_nine]), 2), "cpu")
    batches, seen, states = iter(iterator), [], []
    for _ in range(4):
        seen += next(batches).labels.tolist()
        states.append(iterator.state_dict())
    assert seen == list(range(8))
    with pytest.raises(RecordError, match="record 9 "):
        next(batches)
    assert iterator.state_dict() == states[-1]


def test_a_batch_of_another_form_costs_none_of_those_before_it() -> None:
    pair = (np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
    batches = iter(etl.DeviceIterator([pair, pair, "text"], "cpu"))
    assert [next(batches).records for _ in range(2)] == [2, 2]
    with pytest.raises(ValueError, match=r"a batch is an etl.Batch, a pair of features and labels, .*, not a str"):
        next(batches)


@pytest.mark.parametrize(("cut", "dtype"), [("resize", "bfloat16"), ("channels_first", "float32")])
def test_what_is_finished_on_the_device_has_the_bits_of_the_stages(photographs: Path, cut: str, dtype: str) -> None:
    whole = etl.DeviceIterator(raw(photographs, PIPELINE, dtype=dtype), "cpu")
    before = raw(photographs, PIPELINE.until(cut), dtype=dtype)
    crossing = etl.DeviceIterator(etl.AsyncIterator(before), "cpu", finish=PIPELINE.after(cut))
    assert bits(crossing) == bits(whole)


def test_digits_gain_their_channel_on_the_device(digits: Path) -> None:
    pipeline, source = etl.digits_pipeline(), etl.Idx.from_folder(digits)
    whole = etl.DeviceIterator(etl.RawIterator(source, pipeline, 64), "cpu")
    crossing = etl.DeviceIterator(etl.RawIterator(source, NOTHING, 64), "cpu", finish=pipeline)
    assert bits(crossing) == bits(whole)


def test_a_cast_is_done_on_the_device() -> None:
    records = [{"features": np.full((3, 2, 2), 7, np.uint8)}]
    rest = etl.Pipeline([Cast("float16")])
    (batch,) = etl.DeviceIterator(etl.RawIterator(records, NOTHING, 1, dtype="float16"), "cpu", finish=rest)
    assert batch.features.dtype == torch.float16
    assert batch.labels is None


def test_finishing_leaves_the_batch_below_as_it_is() -> None:
    features = np.ones((1, 3, 2, 2), np.float32)
    below = etl.SyntheticIterator.repeating(etl.Batch(features, np.zeros(1, np.int64)), 2)
    first, second = etl.DeviceIterator(below, "cpu", finish=etl.Pipeline([Normalise()]))
    assert torch.equal(first.features, second.features)
    assert (features == 1).all()


def test_a_stage_that_cannot_run_on_the_device_is_named() -> None:
    class Brighter(Normalise):
        pass

    for stage in (Resize(4, 4), Brighter()):
        with pytest.raises(ValueError, match=f"stage '{stage.name}' cannot be done on the device"):
            etl.DeviceIterator(numbered(), "cpu", finish=etl.Pipeline([ChannelsFirst(), stage]))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (1, r"features have shape \(1, 3, 2, 2\), not \(batch, 1, height, width\)"),
        (2, "features are a tuple of 2 arrays, but `finish` takes records with one input; do its work in a stage of"),
    ],
)
def test_features_that_cannot_be_finished_are_refused(inputs: int, message: str) -> None:
    pixels = np.zeros((3, 2, 2), np.uint8)
    below = etl.RawIterator([{"features": (pixels,) * inputs if inputs > 1 else pixels}], NOTHING, 1)
    device = etl.DeviceIterator(below, "cpu", finish=etl.Pipeline([Normalise((0.5,), (0.5,))]))
    with pytest.raises(ValueError, match=message):
        next(iter(device))


def test_epochs_and_positions_follow_the_batches_handed_out() -> None:
    device, plain = etl.DeviceIterator(etl.AsyncIterator(numbered()), "cpu"), numbered()
    for epoch in range(2):
        assert device.epoch == epoch
        for found, expected in zip(device, plain, strict=True):
            assert found.labels.tolist() == expected.labels.tolist()
            assert device.state_dict() == plain.state_dict()
    assert (len(device), device.batch_size, device.dtype) == (5, 2, "float32")


def test_it_resumes_after_any_batch() -> None:
    expected = [batch.labels.tolist() for batch in numbered()]
    for taken in (1, 4):
        first = etl.DeviceIterator(etl.AsyncIterator(numbered()), "cpu")
        epoch = iter(first)
        begun = [next(epoch).labels.tolist() for _ in range(taken)]
        second = etl.DeviceIterator(numbered(), "cpu")
        second.load_state_dict(first.state_dict())
        assert begun + [batch.labels.tolist() for batch in second] == expected


def test_an_epoch_left_early_starts_again_and_a_stale_one_says_so() -> None:
    device, plain = etl.DeviceIterator(etl.AsyncIterator(numbered()), "cpu"), numbered()
    stale = iter(device)
    next(stale)
    assert [batch.labels.tolist() for batch in device] == [batch.labels.tolist() for batch in plain]
    with pytest.raises(RuntimeError, match="this epoch was ended"):
        next(stale)


@pytest.mark.parametrize("make", [numbered, lambda: etl.AsyncIterator(numbered())])
def test_a_loop_that_takes_the_last_batch_and_asks_for_no_other_ends_its_epoch(make: Any) -> None:
    device, plain = etl.DeviceIterator(make(), "cpu"), numbered()
    for epoch in range(3):
        batches = iter(device)
        taken = [next(batches).labels.tolist() for _ in range(len(device))]
        assert taken == [batch.labels.tolist() for batch in plain]
        assert (device.epoch, device.state_dict()) == (epoch, plain.state_dict())


def skipping() -> etl.RawIterator:
    return etl.RawIterator(RECORDS, etl.Pipeline([refuse_nine]), 2, on_error="skip")


@pytest.mark.parametrize("make", [skipping, lambda: etl.AsyncIterator(skipping())])
def test_a_record_that_was_skipped_only_ahead_is_no_warning_of_a_loop_left_before(make: Any) -> None:
    device = etl.DeviceIterator(make(), "cpu")
    for begin in (lambda: None, lambda: device.set_epoch(0)):
        begin()  # warnings are errors in these tests
        assert [batch.labels.tolist() for batch in islice(device, 4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.warns(UserWarning, match="left out") as caught:
        assert [batch.labels.tolist() for batch in device][-1] == [8]
    assert ["epoch 0 left out 1 of 10 records: " in str(each.message) for each in caught] == [True]


def test_a_shard_is_on_the_device_too() -> None:
    part = etl.DeviceIterator(numbered(), "cpu", finish=etl.Pipeline([Cast("float64")])).shard(1, 2)
    expected = numbered().shard(1, 2)
    assert [batch.labels.tolist() for batch in part] == [batch.labels.tolist() for batch in expected]


def test_fit_accepts_it_in_place_of_the_wrapped_iterator() -> None:
    def scores(iterator: BatchIterator) -> list[float]:
        model = etl.models.create("mlp", (2,), 10, seed=0)
        return etl.fit(model, iterator, backend="cpu", epochs=2).scores

    assert scores(etl.DeviceIterator(etl.AsyncIterator(numbered()), "cpu")) == scores(numbered())
