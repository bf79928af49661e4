"""Invalid arguments are refused by the call that gets them, and the message says what is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import etl
import presave
from etl.iterators import BatchIterator

NOTHING = etl.Pipeline([])
RECORDS = [{"features": [number], "label": number} for number in range(6)]
Make = Callable[..., BatchIterator]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    with presave.write(tmp_path_factory.mktemp("data") / "store", RECORDS) as opened:
        yield opened


@pytest.fixture(params=["raw", "presaved", "synthetic"])
def make(request: pytest.FixtureRequest, store: presave.Store) -> Make:
    """Makes an iterator of one kind with the arguments under test."""
    return {
        "raw": lambda **options: etl.RawIterator(RECORDS, NOTHING, **options),
        "presaved": lambda **options: etl.PresavedIterator(store, NOTHING, **options),
        "synthetic": lambda **options: etl.SyntheticIterator((3,), 2, 4, **options),
    }[request.param]


@pytest.mark.parametrize("batch_size", [0, True, "4"])
def test_batch_size_is_a_whole_number_of_at_least_1(make: Make, batch_size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, not " + repr(batch_size)):
        make(batch_size=batch_size)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_seed_is_a_whole_number_of_64_bits(make: Make, seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed must be a whole number of at least 0 and below 2\*\*64, not "):
        make(seed=seed)


@pytest.mark.parametrize("dtype", ["int8", float])
def test_an_unknown_dtype_lists_the_known_ones(make: Make, dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown dtype .*; known: float16, bfloat16, float32, float64"):
        make(dtype=dtype)


@pytest.mark.parametrize("epoch", [-1, 1.5])
def test_epoch_is_a_whole_number_of_at_least_0(make: Make, epoch: Any) -> None:
    iterator = make()
    with pytest.raises(ValueError, match=f"epoch must be a whole number of at least 0, not {epoch!r}"):
        iterator.set_epoch(epoch)
    assert iterator.epoch == 0


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (2, 2, "rank must be at least 0 and below world_size 2, not 2"),
        (-1, 2, "rank must be a whole number of at least 0, not -1"),
        (0.5, 2, "rank must be a whole number of at least 0, not 0.5"),
        (0, 0, "world_size must be a whole number of at least 1, not 0"),
    ],
)
def test_a_rank_that_does_not_exist_is_refused(make: Make, rank: Any, world_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().shard(rank, world_size)


def test_an_unknown_uneven_lists_the_known_values(make: Make) -> None:
    wrong: Any = "repeat"
    with pytest.raises(ValueError, match="uneven must be 'pad', 'drop' or 'allow', not 'repeat'"):
        make().shard(0, 2, uneven=wrong)


def test_a_shard_cannot_be_sharded_again() -> None:
    part = etl.RawIterator(RECORDS, NOTHING).shard(1, 2)
    with pytest.raises(ValueError, match="this iterator is shard 1 of 2 already"):
        part.shard(0, 2)


def test_a_closed_iterator_says_that_it_is_closed(make: Make) -> None:
    with make() as iterator:
        batches = iter(iterator)
    with pytest.raises(RuntimeError, match="Iterator is closed"):
        iter(iterator)
    with pytest.raises(RuntimeError, match="this epoch was ended"):
        next(batches)


def test_a_source_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="no records to make batches of; the source is empty"):
        etl.RawIterator([], NOTHING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_size": -1}, "prefetch_size must be a whole number of at least 0, not -1"),
        ({"prefetch_size": 1.5}, "prefetch_size must be a whole number of at least 0, not 1.5"),
        ({"threads": 0}, "threads must be a whole number of at least 1, not 0"),
        ({"processes": 0}, "processes must be a whole number of at least 1, not 0"),
        ({"memory_budget": 0}, "memory_budget must be a whole number of at least 1, not 0"),
        ({"workers": "gpu"}, "workers must be 'thread' or 'process', not 'gpu'"),
        ({"start_method": "fork"}, "start_method must be 'forkserver' or 'spawn', not 'fork'"),
        *(
            ({"timeout": seconds}, f"timeout must be a number of seconds above 0, or None, not {seconds}")
            for seconds in (0, -1, float("nan"), float("inf"))
        ),
    ],
)
def test_options_of_loading_ahead_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        etl.AsyncIterator(etl.RawIterator(RECORDS, NOTHING), **options)


@pytest.mark.parametrize("name", ["batches", "classes"])
@pytest.mark.parametrize("count", [0, 1.5])
def test_synthetic_counts_are_whole_numbers_of_at_least_1(name: str, count: Any) -> None:
    arguments = {"batches": 2, "classes": 2, name: count}
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, not {count!r}"):
        etl.SyntheticIterator((3,), **arguments)
