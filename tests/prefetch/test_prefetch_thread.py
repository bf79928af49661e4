"""The thread behind AsyncIterator: how far it reads ahead, and that it ends."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import etl

NOTHING = etl.Pipeline([])
LIMIT_SECONDS = 20
# Only what goes wrong is waited for: a test that passes spends this time once.
TOO_FAR_SECONDS = 0.1


class Watched(list[Any]):
    """Ten records that tell when each is begun, and wait at record `gate_at` until the gate is open."""

    def __init__(self, gate_at: int | None = None) -> None:
        super().__init__({"features": [number], "label": number} for number in range(10))
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate_at = gate_at

    def __getitem__(self, index: Any) -> Any:
        self.begun.release()
        if index == self.gate_at:
            assert self.gate.wait(LIMIT_SECONDS)
        return super().__getitem__(index)


def make_async(records: Any, prefetch_size: int, threads: int = 1) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(records, NOTHING, batch_size=1), prefetch_size, threads=threads)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "etl-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    gc.collect()  # a test that failed elsewhere may have kept its own
    yield
    assert prefetch_threads() == []


@pytest.mark.parametrize("prefetch_size", [1, 2, 3])
def test_exactly_prefetch_size_batches_are_begun_ahead(prefetch_size: int) -> None:
    records = Watched()
    with make_async(records, prefetch_size) as iterator:
        batches = iter(iterator)
        for taken in range(4):
            for _ in range(prefetch_size if taken == 0 else 1):
                assert records.begun.acquire(timeout=LIMIT_SECONDS)
            assert not records.begun.acquire(timeout=TOO_FAR_SECONDS)
            assert next(batches).labels.tolist() == [taken]


def test_nothing_is_loaded_before_the_epoch_starts() -> None:
    records = Watched()
    iterator = make_async(records, 3)
    assert not records.begun.acquire(blocking=False)
    assert prefetch_threads() == []
    assert len(iterator) == 10


def test_a_prefetch_of_0_loads_in_the_callers_thread() -> None:
    records = Watched()
    batches = iter(make_async(records, 0))
    assert not records.begun.acquire(blocking=False)
    next(batches)
    assert prefetch_threads() == []
    assert records.begun.acquire(blocking=False)
    assert not records.begun.acquire(blocking=False)


def test_the_next_batch_is_loaded_while_the_caller_has_this_one() -> None:
    records = Watched(gate_at=1)
    with make_async(records, 1) as iterator:
        batches = iter(iterator)
        assert next(batches).labels.tolist() == [0]
        records.gate.set()
        assert next(batches).labels.tolist() == [1]


def test_an_exhausted_epoch_leaves_no_thread() -> None:
    batches = iter(make_async(Watched(), 2))
    assert len(list(batches)) == 10
    assert prefetch_threads() == []
    del batches


def test_leaving_the_loop_leaves_no_thread() -> None:
    iterator = make_async(Watched(), 2)
    for _ in iterator:
        assert len(prefetch_threads()) == 1
        break
    assert prefetch_threads() == []


def test_an_error_in_the_loop_leaves_no_thread_once_it_is_handled() -> None:
    iterator = make_async(Watched(), 2)

    def train() -> None:
        for _ in iterator:
            raise ZeroDivisionError("the model, not the loader")

    with contextlib.suppress(ZeroDivisionError):
        train()
    assert prefetch_threads() == []


def test_an_error_while_loading_leaves_no_thread_even_while_it_is_handled() -> None:
    batches = iter(etl.AsyncIterator(etl.RawIterator([{"label": 1}], NOTHING), 2))
    with pytest.raises(etl.RecordError):
        next(batches)
    assert prefetch_threads() == []


def test_close_ends_the_thread_while_it_waits_for_room() -> None:
    records = Watched()
    iterator = make_async(records, 1)
    batches = iter(iterator)
    assert records.begun.acquire(timeout=LIMIT_SECONDS)
    iterator.close()
    assert prefetch_threads() == []
    del batches


def test_close_waits_for_the_batch_that_is_being_made_and_no_longer() -> None:
    records = Watched(gate_at=2)
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
    iterator = make_async(Watched(), 2)
    epochs = [iter(iterator) for _ in range(5)]
    assert len(prefetch_threads()) == 1
    iterator.close()
    del epochs


def test_a_close_from_another_thread_wakes_the_caller_that_waits() -> None:
    records = Watched(gate_at=0)
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

    records = Watched(gate_at=1)
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


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(0)", "del batches"])
def test_the_interpreter_exits_while_a_thread_waits(ending: str) -> None:
    script = (
        "import etl\n"
        "records = [{'features': [n], 'label': n} for n in range(100)]\n"
        "iterator = etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 2), 2)\n"
        "batches = iter(iterator)\n"
        "next(batches)\n"
        f"{ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
