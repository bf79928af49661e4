"""The order of records: shuffled, sharded and resumed, each record once an epoch."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.loading.sampler import Sampler, Uneven

RECORDS = st.integers(1, 300)
BATCH_SIZES = st.integers(1, 40)
WORLDS = st.integers(1, 7)
UNEVEN = st.sampled_from(get_args(Uneven))
SEEDS = st.integers(0, 2**64 - 1)


def make_order(records: int, batch_size: int = 4, seed: int = 0, drop_last: bool = False, **shard: Any) -> Sampler:
    return Sampler(records, batch_size, shuffle=True, seed=seed, drop_last=drop_last, **shard)


def batches_of(order: Sampler, epoch: int = 0, position: int = 0) -> list[list[int]]:
    return [numbers.tolist() for numbers, *_ in order.batches(epoch, position)]


def ranks_of(order: Sampler, world_size: int, uneven: Uneven = "pad") -> list[Sampler]:
    return [replace(order, rank=rank, world_size=world_size, uneven=uneven) for rank in range(world_size)]


def unmarked(orders: list[Sampler], epoch: int = 0, position: int = 0) -> list[int]:
    """The records of all ranks but for repeated ones."""
    return [
        number
        for order in orders
        for numbers, repeated, _ in order.batches(epoch, position)
        for number in numbers[: len(numbers) - repeated].tolist()
    ]


@given(RECORDS, SEEDS, st.integers(0, 2**32))
def test_every_epoch_is_a_permutation_that_seed_and_epoch_decide(records: int, seed: int, epoch: int) -> None:
    order = make_order(records, seed=seed).order(epoch)
    assert sorted(order.tolist()) == list(range(records))
    np.testing.assert_array_equal(make_order(records, batch_size=9, seed=seed).order(epoch), order)


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(make_order(20, seed=seed).order(epoch)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_without_shuffling_records_come_as_they_are() -> None:
    order = Sampler(10, 4, shuffle=False, seed=3, drop_last=False)
    assert batches_of(order, epoch=5) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_order_of_a_seed_never_changes() -> None:
    # Whoever changes this changes what every earlier run and saved state means.
    assert make_order(12, seed=0).order(0).tolist() == [0, 7, 6, 1, 9, 3, 8, 10, 5, 2, 4, 11]
    assert make_order(12, seed=0).order(1).tolist() == [1, 10, 11, 4, 2, 7, 0, 8, 9, 5, 3, 6]
    assert make_order(12, seed=2**64 - 1).order(7).tolist() == [11, 5, 0, 9, 2, 10, 6, 7, 8, 4, 1, 3]


@given(RECORDS, BATCH_SIZES, st.booleans())
def test_batches_cover_the_epoch_in_its_order(records: int, batch_size: int, drop_last: bool) -> None:
    order = make_order(records, batch_size, drop_last=drop_last)
    batches = batches_of(order, epoch=2)
    seen = [number for batch in batches for number in batch]
    kept = records - records % batch_size if drop_last else records
    assert seen == order.order(2)[:kept].tolist()
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(RECORDS, BATCH_SIZES, WORLDS, st.booleans())
def test_shards_partition_every_step(records: int, batch_size: int, world_size: int, drop_last: bool) -> None:
    order = make_order(records, batch_size, drop_last=drop_last)
    shards = [batches_of(rank) for rank in ranks_of(order, world_size, "allow")]
    whole = batches_of(make_order(records, batch_size * world_size, drop_last=drop_last))
    for step, expected in enumerate(whole):
        parts = [batches[step] for batches in shards if step < len(batches)]
        assert [number for part in parts for number in part] == expected
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(map(len, shards)) == len(whole)


@given(RECORDS, BATCH_SIZES, WORLDS, st.booleans(), UNEVEN)
def test_len_is_the_number_of_batches_of_each_rank(
    records: int, batch_size: int, world_size: int, drop_last: bool, uneven: Uneven
) -> None:
    for rank in ranks_of(make_order(records, batch_size, drop_last=drop_last), world_size, uneven):
        assert rank.epoch_batches == len(batches_of(rank))


@given(RECORDS, BATCH_SIZES, WORLDS, st.booleans(), UNEVEN)
def test_a_rank_is_over_after_its_last_batch_and_not_before(
    records: int, batch_size: int, world_size: int, drop_last: bool, uneven: Uneven
) -> None:
    for rank in ranks_of(make_order(records, batch_size, drop_last=drop_last), world_size, uneven):
        ends = [after for *_, after in rank.batches(0, 0)]
        assert [each for each in ends if rank.is_over(each)] == ends[-1:]


@given(RECORDS, BATCH_SIZES, WORLDS, UNEVEN)
def test_drop_last_gives_every_rank_equally_many_whole_batches(
    records: int, batch_size: int, world_size: int, uneven: Uneven
) -> None:
    order = make_order(records, batch_size, drop_last=True)
    shards = [batches_of(rank) for rank in ranks_of(order, world_size, uneven)]
    assert {len(batches) for batches in shards} == {records // (batch_size * world_size)}
    assert {len(batch) for batches in shards for batch in batches} <= {batch_size}


@given(st.data(), RECORDS, BATCH_SIZES, WORLDS, WORLDS)
def test_a_position_resumes_with_another_number_of_ranks(
    data: st.DataObject, records: int, batch_size: int, before: int, after: int
) -> None:
    order = make_order(records, batch_size)
    saving, loading = ranks_of(order, before, "allow"), ranks_of(order, after, "allow")
    plan = list(saving[0].batches(1, 0))
    steps = data.draw(st.integers(0, len(plan)))
    position = plan[steps - 1][-1] if steps else 0
    seen = [number for rank in saving for batch in batches_of(rank, 1)[:steps] for number in batch]
    rest = [number for rank in loading for batch in batches_of(rank, 1, position) for number in batch]
    assert sorted(seen + rest) == list(range(records))
    # Padded, the ranks go on with as many batches each, and those records that are not marked are the same.
    padded = ranks_of(order, after, "pad")
    assert len({len(batches_of(rank, 1, position)) for rank in padded}) == 1
    assert sorted(unmarked(padded, 1, position)) == sorted(rest)


@settings(max_examples=150)
@given(RECORDS, BATCH_SIZES, st.sampled_from([1, 2, 3, 5, 7]), st.booleans(), st.booleans(), st.booleans(), st.data())
def test_all_ranks_get_equally_many_batches(
    records: int, batch_size: int, world_size: int, drop_last: bool, buckets: bool, drops: bool, data: st.DataObject
) -> None:
    order = make_order(records, batch_size, drop_last=drop_last)
    if buckets:
        order = replace(order, bucket_records=30, lengths=np.arange(records) % 11)
    ranks = ranks_of(order, world_size, "drop" if drops else "pad")
    # From any position, as after resuming a run of other ranks.
    position = data.draw(st.sampled_from([0, data.draw(st.integers(0, records))]), "position")
    plans = [list(rank.batches(3, position)) for rank in ranks]
    assert len({len(plan) for plan in plans}) == 1
    if position == 0:
        assert {len(plan) for plan in plans} == {rank.epoch_batches for rank in ranks}
    for step in zip(*plans, strict=True):
        assert len({len(numbers) for numbers, _, _ in step}) == 1
        assert len({after for _, _, after in step}) == 1
        assert sum(repeated for _, repeated, _ in step) < world_size
        assert 0 < len(step[0][0]) <= batch_size


@given(RECORDS, BATCH_SIZES, WORLDS)
def test_padded_ranks_repeat_and_mark_only_what_is_missing_from_the_last_step(
    records: int, batch_size: int, world_size: int
) -> None:
    order = make_order(records, batch_size)
    ranks = ranks_of(order, world_size, "pad")
    plans = [list(rank.batches(2, 0)) for rank in ranks]
    left = records % (batch_size * world_size) or min(records, batch_size * world_size)
    assert {len(plan[-1][0]) for plan in plans} == {-(-left // world_size)}
    assert sum(repeated for plan in plans for _, repeated, _ in plan) == -left % world_size
    assert not any(repeated for plan in plans for _, repeated, _ in plan[:-1])
    assert sorted(unmarked(ranks, 2)) == list(range(records))
    found = [numbers[-1] for plan in plans for numbers, repeated, _ in plan if repeated]
    assert found == np.resize(order.order(2), len(found)).tolist()


@given(RECORDS, BATCH_SIZES, WORLDS)
def test_dropping_gives_each_rank_an_even_share_of_the_last_step_and_leaves_out_the_rest(
    records: int, batch_size: int, world_size: int
) -> None:
    order = make_order(records, batch_size)
    ranks = ranks_of(order, world_size, "drop")
    whole, left = divmod(records, batch_size * world_size)
    assert all(
        [len(batch) for batch in batches_of(rank)][whole:] == [left // world_size][: left // world_size]
        for rank in ranks
    )
    seen = [number for rank in ranks for batch in batches_of(rank) for number in batch]
    assert len(seen) == len(set(seen)) == records - left % world_size
    assert sorted(seen) == sorted(unmarked(ranks)) == sorted(order.order(0)[: len(seen)])


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epochs_order_takes_eight_bytes_a_record(shuffle: bool) -> None:
    order = Sampler(500_000, 1000, shuffle, seed=0, drop_last=False)
    tracemalloc.start()
    try:
        for numbers, *_ in order.batches(0, 0):
            assert numbers.base is not None  # a view of the order, not a copy
        assert 8 * 500_000 <= tracemalloc.get_traced_memory()[1] < 8.2 * 500_000
    finally:
        tracemalloc.stop()
