"""The thread behind AsyncIterator: how far it reads ahead, and that it ends."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import Any

import pytest

import etl
from tests.leftovers import prefetch_threads
from tests.programs import run_python
from tests.watched_records import LIMIT_SECONDS, Watched

NOTHING = etl.Pipeline([])
pytestmark = pytest.mark.usefixtures("no_prefetch_thread_is_left")


def watched(*waiting: int) -> Watched:
    return Watched(10, waiting)


def make_async(records: Any, prefetch_size: int) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(records, NOTHING, batch_size=1), prefetch_size, threads=1)


def test_nothing_is_loaded_before_the_epoch_starts() -> None:
    records = watched()
    iterator = make_async(records, 3)
    assert not records.begun.acquire(blocking=False)
    assert prefetch_threads() == []
    assert len(iterator) == 10


def test_a_prefetch_of_0_loads_in_the_callers_thread() -> None:
    records = watched()
    batches = iter(make_async(records, 0))
    assert not records.begun.acquire(blocking=False)
    next(batches)
    assert prefetch_threads() == []
    assert records.begun.acquire(blocking=False)
    assert not records.begun.acquire(blocking=False)


def test_leaving_the_loop_leaves_no_thread() -> None:
    iterator = make_async(watched(), 2)
    for _ in iterator:
        assert len(prefetch_threads()) == 1
        break
    assert prefetch_threads() == []


def test_an_error_in_the_loop_leaves_no_thread_once_it_is_handled() -> None:
    iterator = make_async(watched(), 2)

    def train() -> None:
        for _ in iterator:
            raise ZeroDivisionError("the model, not the loader")

    with contextlib.suppress(ZeroDivisionError):
        train()
    assert prefetch_threads() == []


def test_close_ends_the_thread_while_it_waits_for_room() -> None:
    records = watched()
    iterator = make_async(records, 1)
    batches = iter(iterator)
    assert records.begun.acquire(timeout=LIMIT_SECONDS)
    iterator.close()
    assert prefetch_threads() == []
    del batches


def test_close_waits_for_the_batch_that_is_being_made_and_no_longer() -> None:
    records = watched(2)
    iterator = make_async(records, 5)
    batches = iter(iterator)
    for _ in range(3):
        assert records.begun.acquire(timeout=LIMIT_SECONDS)
    closing = threading.Thread(target=iterator.close)
    closing.start()
    records.gate.set()
    closing.join(LIMIT_SECONDS)
    assert not closing.is_alive()
    del batches


def test_a_new_epoch_ends_the_thread_of_the_old_one() -> None:
    iterator = make_async(watched(), 2)
    epochs = [iter(iterator) for _ in range(5)]
    assert len(prefetch_threads()) == 1
    iterator.close()
    del epochs


def test_a_close_from_another_thread_wakes_the_caller_that_waits() -> None:
    records = watched(0)
    iterator = make_async(records, 1)
    batches = iter(iterator)
    outcome: list[str] = []

    def wait() -> None:
        try:
            next(batches)
        except RuntimeError as error:
            outcome.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert records.begun.acquire(timeout=LIMIT_SECONDS)
    closing = threading.Thread(target=iterator.close)
    closing.start()
    waiting.join(LIMIT_SECONDS)
    assert not waiting.is_alive()
    assert outcome == ["this epoch was ended: the iterator was closed or another epoch started"]
    records.gate.set()
    closing.join(LIMIT_SECONDS)
    assert not closing.is_alive()


def test_the_collector_may_drop_an_epoch_inside_its_own_thread() -> None:
    def collect_while_the_channel_is_held(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "notify_all":
            gc.collect()

    records = watched(1)
    iterator = make_async(records, 5)
    gc.disable()
    threading.setprofile(collect_while_the_channel_is_held)
    try:
        batches = iter(iterator)
        next(batches)
        thread = prefetch_threads()[0]
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        del batches, cycle  # only the collector can find it, and it runs in the thread
        records.gate.set()
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        gc.enable()


def test_the_interpreter_exits_while_a_thread_waits() -> None:
    script = (
        "import etl\n"
        "records = [{'features': [n], 'label': n} for n in range(100)]\n"
        "iterator = etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 2), 2)\n"
        "batches = iter(iterator)\n"
        "next(batches)\n"
    )
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
