"""Buckets: batches of similar lengths, every record once, sharded and resumed as without them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import etl
import presave
from etl.loading import Padding
from etl.loading.sampler import Sampler
from tests.every_strategy import bits
from tests.sequences import NOTHING, Sequences, every_other_step, sequences

RECORDS = st.integers(1, 300)
BATCH_SIZES = st.integers(1, 20)
WORLDS = st.integers(1, 4)
WINDOWS = st.integers(1, 400)


def make_order(
    records: int,
    batch_size: int,
    bucket_records: int | None,
    drop_last: bool = False,
    shuffle: bool = True,
    **shard: Any,
) -> Sampler:
    lengths = np.random.default_rng(records).integers(0, 50, records)
    return Sampler(records, batch_size, shuffle, 3, drop_last, bucket_records=bucket_records, lengths=lengths, **shard)


def batches_of(sampler: Sampler, epoch: int = 0) -> list[list[int]]:
    return [indices.tolist() for indices, *_ in sampler.batches(epoch, 0)]


@given(RECORDS, BATCH_SIZES, WINDOWS, st.integers(0, 9), st.booleans())
def test_every_record_comes_once_and_within_its_window(
    records: int, batch_size: int, bucket_records: int, epoch: int, shuffle: bool
) -> None:
    order = make_order(records, batch_size, bucket_records, shuffle=shuffle)
    plain = make_order(records, batch_size, None, shuffle=shuffle).order(epoch)
    bucketed = order.order(epoch)
    whole = records - records % batch_size
    size = max(1, bucket_records // batch_size) * batch_size
    for first in range(0, whole, size):
        window = slice(first, min(first + size, whole))
        assert sorted(bucketed[window]) == sorted(plain[window])
    assert bucketed[whole:].tolist() == plain[whole:].tolist()


@given(RECORDS, BATCH_SIZES, WINDOWS, WORLDS)
def test_the_steps_of_a_window_do_not_overlap_in_length(
    records: int, batch_size: int, bucket_records: int, world_size: int
) -> None:
    order = make_order(records, batch_size, bucket_records, drop_last=True, world_size=world_size)
    assert order.lengths is not None
    step = batch_size * world_size
    per_window = max(1, bucket_records // step)
    steps = np.sort(order.lengths[order.order(1)[: records // step * step]].reshape(-1, step), axis=1)
    for first in range(0, len(steps), per_window):
        window = sorted(steps[first : first + per_window].tolist(), key=lambda each: (each[0], each[-1]))
        assert all(short[-1] <= long[0] for short, long in pairwise(window))


def test_batches_come_shuffled_and_another_epoch_in_another_order() -> None:
    order = make_order(200, 5, 200)
    assert order.lengths is not None
    orders = [[int(order.lengths[batch].max()) for batch in batches_of(order, epoch)] for epoch in range(2)]
    assert all(each != sorted(each) for each in orders)
    assert orders[0] != orders[1]
    unshuffled = make_order(200, 5, 200, shuffle=False)
    lengths = [int(order.lengths[batch].max()) for batch in batches_of(unshuffled)]
    assert lengths == sorted(lengths)


def test_the_order_of_a_seed_never_changes() -> None:
    # Whoever changes this changes what every earlier run and saved state means.
    lengths = np.arange(12) % 5
    order = Sampler(12, 2, True, 0, False, bucket_records=8, lengths=lengths)
    assert order.order(0).tolist() == [7, 3, 6, 1, 8, 9, 0, 10, 2, 4, 5, 11]


def make_iterators(folder: Path, **settings: Any) -> dict[str, Any]:
    source = Sequences(sequences(50))
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "padding": Padding(), "bucket_records": 16}
    given |= settings
    if not (folder / "store").exists():
        presave.write(folder / "store", etl.records(source, NOTHING), ragged=["features"]).close()
    raw, saved = (
        etl.RawIterator(source, NOTHING, **given),
        etl.PresavedIterator(folder / "store", NOTHING, **given),
    )
    return {"raw": raw, "presaved": saved, "async": etl.AsyncIterator(etl.RawIterator(source, NOTHING, **given))}


def test_every_strategy_gives_the_same_batches_with_less_padding(tmp_path: Path) -> None:
    expected, *others = (bits(each) for each in make_iterators(tmp_path).values())
    assert all(each == expected for each in others)
    padded = [
        sum(batch.features_mask.size for batch in etl.RawIterator(Sequences(sequences(50)), NOTHING, 4, **way))
        for way in ({"padding": Padding()}, {"padding": Padding(), "bucket_records": 16})
    ]
    assert padded[1] < 0.8 * padded[0]


@pytest.mark.parametrize(("saving", "loading"), [("raw", "async"), ("async", "presaved")])
def test_a_state_resumes_in_every_strategy(tmp_path: Path, saving: str, loading: str) -> None:
    first = make_iterators(tmp_path)[saving]
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = first.state_dict()
    expected = bits(batches)
    second = make_iterators(tmp_path)[loading]
    second.load_state_dict(state)
    assert bits(second) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bucket_records": None}, "taken with bucket_records=16, this iterator has bucket_records=None"),
        ({"bucket_records": 8}, "taken with bucket_records=16, this iterator has bucket_records=8"),
        ({"batch_size": 2}, "taken with step_records=4, this iterator has step_records=2"),
    ],
)
def test_a_state_of_other_buckets_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    state = make_iterators(tmp_path)["raw"].state_dict()
    for iterator in make_iterators(tmp_path, **settings).values():
        with pytest.raises(ValueError, match=message):
            iterator.load_state_dict(state)


def test_ranks_may_change_if_a_step_keeps_its_number_of_records(tmp_path: Path) -> None:
    one = make_iterators(tmp_path)["raw"]
    state = one.state_dict()
    two = make_iterators(tmp_path, batch_size=2)["raw"].shard(0, 2)
    two.load_state_dict(state)
    assert len(list(two)) == len(one) == 13


def test_a_state_of_other_lengths_is_refused(tmp_path: Path) -> None:
    state = make_iterators(tmp_path)["raw"].state_dict()
    other = etl.RawIterator(
        Sequences(sequences(50, seed=9)), NOTHING, 4, shuffle=True, padding=Padding(), bucket_records=16
    )
    with pytest.raises(ValueError, match="the state was taken with lengths="):
        other.load_state_dict(state)


def test_buckets_need_padding_and_lengths() -> None:
    source = Sequences(sequences())
    with pytest.raises(ValueError, match=r"bucket_records puts records of similar lengths into a batch.*pass padding"):
        etl.RawIterator(source, NOTHING, bucket_records=8)
    with pytest.raises(ValueError, match="bucket_records must be a whole number of at least 1, not 0"):
        etl.RawIterator(source, NOTHING, padding=Padding(), bucket_records=0)
    for records, pipeline in ((list(source), NOTHING), (source, etl.Pipeline([every_other_step]))):
        with pytest.raises(ValueError, match="bucket_records needs lengths before records are loaded, but"):
            etl.RawIterator(records, pipeline, padding=Padding(), bucket_records=8)
