"""`CollectionWatch` sees every collection while it watches, and no other."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from etl.runtime import Collections, CollectionWatch, GcPolicy

Counts = list[int]


@pytest.fixture(autouse=True)
def no_automatic_collections() -> Iterator[None]:
    """Turn the collector off, so that all collections are made by the test, and leave it little to do."""
    gc.freeze()
    with GcPolicy("off"):
        yield
    gc.unfreeze()


def counts(collections: list[Collections]) -> Counts:
    assert [each.generation for each in collections] == [0, 1, 2]
    return [each.count for each in collections]


def test_collections_are_counted_and_timed_by_generation() -> None:
    with CollectionWatch() as watch:
        for generation in (0, 2, 0):
            gc.collect(generation)
        taken = watch.take()
    assert counts(taken) == [2, 0, 1]
    assert [each.seconds > 0 for each in taken] == [True, False, True]


def test_what_was_taken_is_not_counted_again() -> None:
    with CollectionWatch() as watch:
        gc.collect()
        watch.take()
        gc.collect(0)
        assert counts(watch.take()) == [1, 0, 0]
        assert counts(watch.take()) == [0, 0, 0]


def test_automatic_collections_are_counted() -> None:
    with CollectionWatch() as watch:
        gc.enable()
        cycles: list[list[object]] = []
        for _ in range(10 * gc.get_threshold()[0]):
            cycles.append([])
            cycles[-1].append(cycles[-1])
        gc.disable()
        assert counts(watch.take())[0] > 0


def test_only_collections_between_start_and_stop_are_counted_and_each_once() -> None:
    before = list(gc.callbacks)
    watch = CollectionWatch()
    watch.stop()
    for _ in range(2):
        gc.collect(1)
        watch.start()
        watch.start()
        gc.collect(0)
        watch.stop()
        gc.collect(1)
    assert counts(watch.take()) == [1, 0, 0]  # starting again begins from nothing
    assert gc.callbacks == before


def test_two_watches_count_apart() -> None:
    with CollectionWatch() as outer:
        gc.collect(0)
        with CollectionWatch() as inner:
            gc.collect(1)
        gc.collect(2)
    assert counts(outer.take()) == [1, 1, 1]
    assert counts(inner.take()) == [0, 1, 0]


def test_a_watch_begun_in_the_middle_of_a_collection_does_not_count_that_one() -> None:
    watch = CollectionWatch()

    class Starts:
        def __del__(self) -> None:
            watch.start()

    cycle: list[object] = [Starts()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert counts(watch.take()) == [0, 0, 0]
    gc.collect()
    watch.stop()
    assert counts(watch.take()) == [0, 0, 1]
