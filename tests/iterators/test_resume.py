"""Resuming: a saved state, loaded into any strategy, gives exactly the batches that were left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
import presave
from etl.iterators import BatchIterator
from tests.leftovers import wait_for_prefetch_threads
from tests.watched_records import Watched

COUNT = 23
RECORDS = [{"features": np.array([number], np.int64), "label": number} for number in range(COUNT)]
NOTHING = etl.Pipeline([])
STRATEGIES = st.sampled_from(["raw", "presaved", "async raw", "async presaved", "async 0"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    with presave.write(tmp_path_factory.mktemp("data") / "store", RECORDS) as opened:
        yield opened


def make_iterator(strategy: str, store: presave.Store, batch_size: int = 4, drop_last: bool = False) -> BatchIterator:
    iterator: BatchIterator
    if "presaved" in strategy:
        iterator = etl.PresavedIterator(store, NOTHING, batch_size, shuffle=True, seed=1, drop_last=drop_last)
    else:
        iterator = etl.RawIterator(RECORDS, NOTHING, batch_size, shuffle=True, seed=1, drop_last=drop_last)
    return etl.AsyncIterator(iterator, 0 if strategy.endswith("0") else 2) if "async" in strategy else iterator


def batches_until(iterator: BatchIterator, epoch: int) -> Iterator[list[int]]:
    """The labels of each batch, over all epochs before `epoch`."""
    while iterator.epoch < epoch:
        for batch in iterator:
            yield batch.labels.tolist()


@settings(max_examples=60)
@given(STRATEGIES, STRATEGIES, st.integers(1, COUNT + 2), st.booleans(), st.data())
def test_a_resumed_epoch_is_exactly_what_the_saved_iterator_had_left(
    store: presave.Store, saved_by: str, loaded_by: str, batch_size: int, drop_last: bool, data: st.DataObject
) -> None:
    drop_last = drop_last and batch_size <= COUNT
    with (
        make_iterator(saved_by, store, batch_size, drop_last) as first,
        make_iterator(loaded_by, store, batch_size, drop_last) as second,
    ):
        taken = data.draw(st.integers(0, 2 * len(first) + 1), label="batches before saving")
        running = batches_until(first, 3)
        for _ in islice(running, taken):
            pass
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert list(batches_until(second, 3)) == list(running)


@pytest.mark.parametrize("strategy", ["raw", "async raw"])
def test_the_state_is_that_of_the_last_batch_handed_out(store: presave.Store, strategy: str) -> None:
    with make_iterator(strategy, store) as iterator:
        assert iterator.state_dict()["position"] == 0
        positions = [(batch.records, iterator.state_dict()["position"]) for batch in iterator]
        assert positions == [(4, 4), (4, 8), (4, 12), (4, 16), (4, 20), (3, 0)]
        assert iterator.state_dict()["epoch"] == 1


def test_the_state_does_not_change_while_batches_are_loaded_ahead() -> None:
    records = Watched(COUNT)
    with etl.AsyncIterator(etl.RawIterator(records, NOTHING, 4), prefetch_size=7) as iterator:
        batches = iter(iterator)
        next(batches)
        wait_for_prefetch_threads()  # there is room for the whole epoch
        records.assert_begun(COUNT)
        assert iterator.state_dict()["position"] == 4
        assert iterator.epoch == 0


@pytest.mark.parametrize("strategy", ["raw", "async raw", "presaved"])
def test_an_epoch_left_early_starts_again_but_one_that_was_resumed_goes_on(store: presave.Store, strategy: str) -> None:
    with make_iterator(strategy, store) as iterator:
        whole = list(batches_until(iterator, 1))
        iterator.set_epoch(0)
        for _ in islice(iterator, 2):
            pass
        state = iterator.state_dict()
        assert list(batches_until(iterator, 1)) == whole
        iterator.load_state_dict(state)
        assert list(batches_until(iterator, 1)) == whole[2:]


@pytest.mark.parametrize("strategy", ["raw", "presaved", "async raw", "async 0"])
def test_a_loop_that_takes_the_last_batch_and_asks_for_no_other_ends_its_epoch(
    store: presave.Store, strategy: str
) -> None:
    with make_iterator(strategy, store) as iterator, make_iterator("raw", store) as plain:
        for epoch in range(3):
            batches = iter(iterator)
            taken = [next(batches).labels.tolist() for _ in range(len(iterator))]
            assert taken == [batch.labels.tolist() for batch in plain]
            assert (iterator.epoch, iterator.state_dict()["epoch"], iterator.shard(0, 2).epoch) == (
                epoch,
                epoch + 1,
                epoch + 1,
            )
        plain.load_state_dict(iterator.state_dict())
        assert list(batches_until(plain, 4)) == list(batches_until(iterator, 4))


@pytest.mark.parametrize("strategy", ["raw", "async raw"])
def test_loading_a_state_and_saving_it_again_changes_nothing(store: presave.Store, strategy: str) -> None:
    with make_iterator("raw", store) as saved, make_iterator(strategy, store) as loaded:
        for _ in islice(saved, 3):
            pass
        loaded.load_state_dict(saved.state_dict())
        assert loaded.state_dict() == saved.state_dict()
        batches = iter(loaded)
        assert loaded.state_dict() == saved.state_dict()
        next(batches)
        assert loaded.state_dict()["position"] == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "taken with seed=2, this iterator has seed=1"),
        ({"records": 22}, "taken with records=22, this iterator has records=23"),
        ({"shuffle": False}, "taken with shuffle=False, this iterator has shuffle=True"),
    ],
)
@pytest.mark.parametrize("strategy", ["raw", "async presaved"])
def test_a_state_of_another_order_is_refused(
    store: presave.Store, strategy: str, change: dict[str, Any], message: str
) -> None:
    with make_iterator(strategy, store) as iterator:
        state = {**iterator.state_dict(), "epoch": 9, **change}
        with pytest.raises(ValueError, match=message):
            iterator.load_state_dict(state)
        assert iterator.epoch == 0


@pytest.mark.parametrize("change", [{"position": -1}, {"position": COUNT + 1}, {"position": "4"}, {"epoch": -1}])
def test_an_impossible_state_is_refused(store: presave.Store, change: dict[str, Any]) -> None:
    iterator = make_iterator("raw", store)
    state = iterator.state_dict()
    for wrong in ({**state, **change}, {name: state[name] for name in state if name not in change}):
        with pytest.raises(ValueError, match=next(iter(change))):
            iterator.load_state_dict(wrong)
    assert iterator.state_dict() == state
