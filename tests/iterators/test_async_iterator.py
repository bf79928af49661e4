"""AsyncIterator: errors, ends and epochs arrive where they belong."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import Any

import pytest

import etl
from etl.iterators import BatchIterator
from etl.sources import RecordError
from tests.leftovers import wait_for_prefetch_threads

NOTHING = etl.Pipeline([])
RECORDS = [{"features": [number], "label": number} for number in range(10)]


class Failing(list[Any]):
    """Records, of which number 5 raises `error`, until there is none."""

    error: BaseException | None = OSError("disk on fire")

    def __getitem__(self, index: Any) -> Any:
        if index == 5 and self.error is not None:
            raise self.error
        return super().__getitem__(index)


class Interrupted(BaseException):
    """Like KeyboardInterrupt: no Exception."""


def labels_of(iterator: BatchIterator) -> list[list[int]]:
    return [batch.labels.tolist() for batch in iterator]


def make_async(records: Any = RECORDS, prefetch_size: int = 2, **options: Any) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(records, NOTHING, 2, **options), prefetch_size, threads=1)


@pytest.mark.parametrize("prefetch_size", [0, 1, 3, 9])
def test_the_worker_error_is_raised_at_the_batch_it_belongs_to(prefetch_size: int) -> None:
    batches = iter(make_async(Failing(RECORDS), prefetch_size))
    assert [next(batches).labels.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RecordError, match="record 5 of Failing: failed at stage 'read': disk on fire") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, OSError)
    assert traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].name == "__getitem__"
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)


def test_a_handled_error_keeps_nothing_of_the_callers_alive() -> None:
    class Model:
        pass

    def train(model: Model) -> None:
        labels_of(make_async(Failing(RECORDS)))

    model = Model()
    alive = weakref.ref(model)
    gc.disable()
    try:
        try:
            train(model)
        except RecordError:
            del model
        assert alive() is None
    finally:
        gc.enable()


def test_an_interrupt_in_the_worker_reaches_the_caller() -> None:
    records = Failing(RECORDS)
    records.error = Interrupted()
    batches = iter(make_async(records))
    assert [next(batches).labels.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(Interrupted):
        next(batches)


def test_after_an_error_the_epoch_can_be_tried_again() -> None:
    records = Failing(RECORDS)
    iterator = make_async(records)
    with pytest.raises(RecordError):
        labels_of(iterator)
    assert iterator.state_dict()["position"] == 4
    records.error = None
    assert labels_of(iterator) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert iterator.epoch == 1


@pytest.mark.parametrize("prefetch_size", [0, 1, 2, 9])
def test_next_past_the_end_stops_again_and_again(prefetch_size: int) -> None:
    batches = iter(make_async(prefetch_size=prefetch_size))
    assert len(list(batches)) == 5
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)


def test_an_epoch_loaded_to_its_end_but_left_early_starts_again() -> None:
    iterator, plain = make_async(prefetch_size=9, shuffle=True), etl.RawIterator(RECORDS, NOTHING, 2, shuffle=True)
    for _ in iterator:
        wait_for_prefetch_threads()
        break
    assert iterator.epoch == 0
    assert labels_of(iterator) == labels_of(plain)


@pytest.mark.parametrize("prefetch_size", [0, 2])
def test_a_stale_epoch_says_so(prefetch_size: int) -> None:
    iterator = make_async(prefetch_size=prefetch_size)
    first = iter(iterator)
    next(first)
    second = iter(iterator)
    assert next(second).labels.tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="this epoch was ended: the iterator was closed or another epoch started"):
        next(first)
    assert next(second).labels.tolist() == [2, 3]


@pytest.mark.parametrize("prefetch_size", [0, 2])
def test_set_epoch_ends_the_epoch_that_runs(prefetch_size: int) -> None:
    iterator = make_async(prefetch_size=prefetch_size, shuffle=True)
    running = iter(iterator)
    next(running)
    iterator.set_epoch(3)
    with pytest.raises(RuntimeError, match="this epoch was ended"):
        next(running)
    assert iterator.state_dict()["epoch"] == iterator.epoch == 3
    expected = etl.RawIterator(RECORDS, NOTHING, 2, shuffle=True)
    expected.set_epoch(3)
    assert labels_of(iterator) == labels_of(expected)


@pytest.mark.parametrize(
    "wrap",
    [
        etl.AsyncIterator,
        lambda raw: etl.DeviceIterator(raw, "cpu"),
        lambda raw: etl.DeviceIterator(etl.AsyncIterator(raw), "cpu"),
    ],
)
def test_an_epoch_that_is_set_below_holds_after_a_loop_that_was_left(wrap: Any) -> None:
    raw, plain = (etl.RawIterator(RECORDS, NOTHING, 2, shuffle=True) for _ in range(2))
    iterator = wrap(raw)
    for epoch in (0, 1, 4):
        for each in (raw, plain):
            each.set_epoch(epoch)
        assert iterator.shard(0, 2).epoch == epoch
        assert next(iter(iterator)).labels.tolist() == next(iter(plain)).labels.tolist()
        assert iterator.epoch == epoch


def test_an_epoch_that_is_set_below_while_one_runs_is_the_next_one() -> None:
    raw = etl.RawIterator(RECORDS, NOTHING, 2)
    iterator = etl.AsyncIterator(raw)
    for _ in iterator:
        raw.set_epoch(6)
    assert iterator.epoch == 6


@pytest.mark.parametrize("prefetch_size", [0, 2])
def test_a_closed_iterator_refuses_to_go_on_and_to_start(prefetch_size: int) -> None:
    iterator = make_async(prefetch_size=prefetch_size)
    running = iter(iterator)
    next(running)
    iterator.close()
    iterator.close()
    with pytest.raises(RuntimeError, match="this epoch was ended"):
        next(running)
    with pytest.raises(RuntimeError, match="RawIterator is closed"):
        iter(iterator)


@pytest.mark.parametrize("wrap", [etl.AsyncIterator, lambda raw: etl.DeviceIterator(raw, "cpu")])
def test_the_state_of_an_epoch_that_has_begun_is_its_start_though_the_iterator_below_was_read(wrap: Any) -> None:
    raw = etl.RawIterator(RECORDS, NOTHING, 2)
    next(iter(raw))  # as to see its shapes
    with wrap(raw) as iterator:
        batches = iter(iterator)
        assert iterator.state_dict()["position"] == 0
        assert next(batches).labels.tolist() == [0, 1]
        assert iterator.state_dict()["position"] == 2


def test_a_shard_starts_at_the_epoch_its_caller_is_in() -> None:
    whole = make_async(prefetch_size=9, shuffle=True)
    batches = iter(whole)
    next(batches)
    wait_for_prefetch_threads()
    part = whole.shard(1, 2)
    assert part.prefetch_size == 9
    assert part.epoch == whole.epoch == 0
    assert labels_of(part) == labels_of(etl.RawIterator(RECORDS, NOTHING, 2, shuffle=True).shard(1, 2))


def test_it_shows_what_it_wraps() -> None:
    iterator = make_async(dtype="float64")
    assert (iterator.batch_size, iterator.dtype, len(iterator), iterator.prefetch_size) == (2, "float64", 5, 2)


def test_an_iterator_that_must_not_be_wrapped_is_refused_with_its_reason() -> None:
    class Camera(etl.RawIterator):
        async_supported = False
        async_unsupported_reason = "the camera has one buffer"

    class Silent(etl.RawIterator):
        async_supported = False

    refused: list[tuple[Any, str]] = [
        (etl.SyntheticIterator((3,), 2, 4), "SyntheticIterator must not be wrapped.*it repeats one batch"),
        (make_async(), "AsyncIterator must not be wrapped.*it is asynchronous already"),
        (etl.DeviceIterator(make_async(), "cpu"), "DeviceIterator must .*is on the device already; wrap the"),
        (Camera(RECORDS, NOTHING), "Camera must not be wrapped in AsyncIterator: the camera has one buffer"),
        (Silent(RECORDS, NOTHING), "Silent must not be wrapped in AsyncIterator: its async_supported is False"),
    ]
    for iterator, message in refused:
        with pytest.raises(ValueError, match=message):
            etl.AsyncIterator(iterator)
