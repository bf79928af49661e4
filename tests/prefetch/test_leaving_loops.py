"""Leaving a loop while a thread waits in a user's loader takes a moment, and the thread that is left does no harm."""

from __future__ import annotations

import copy
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import etl
from presave import interrupts
from tests.leftovers import wait_for_prefetch_threads

NOTHING = etl.Pipeline([])
LEFT = r"batch 2 of Live: not finished .* the thread that waits for it is left"


class Live:
    """A user's iterable whose third batch comes when it is put into its queue."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.waits = threading.Event()
        for _ in range(2):
            self.put()

    def put(self) -> None:
        self.queue.put((np.zeros((2, 3), np.float32), np.zeros(2, np.int64)))

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self.queue.empty():
                self.waits.set()
            yield self.queue.get()


class Sleepy:
    """Records of which the eighth is not there until it is released."""

    thread_safe = True

    def __init__(self) -> None:
        self.waits, self.released = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 8:
            self.waits.set()
            self.released.wait()
        return {"features": np.full(2, index, np.float32), "label": index}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_SECONDS", 0.2)


def end(live: Live) -> None:
    """Give the thread its batch, and wait for its end."""
    live.put()
    wait_for_prefetch_threads()


def until_it_waits(live: Live) -> tuple[etl.AsyncIterator, list[Any]]:
    """Return an iterator over `live`, and a list with its epoch, of which the third batch is waited for."""
    iterator = etl.AsyncIterator(live)
    epochs = [iter(iterator)]
    next(epochs[0]), next(epochs[0])
    assert live.waits.wait(10)
    return iterator, epochs


@pytest.mark.parametrize(
    "leave",
    [
        lambda iterator, epochs: epochs.clear(),  # as a loop that is left does
        lambda iterator, epochs: iterator.close(),
        lambda iterator, epochs: iterator.set_epoch(3),
    ],
)
def test_leaving_a_loop_leaves_the_thread_with_a_warning_that_names_the_batch(leave: Callable[..., None]) -> None:
    live = Live()
    iterator, epochs = until_it_waits(live)
    with pytest.warns(RuntimeWarning, match=LEFT):
        leave(iterator, epochs)
    end(live)


def test_a_generator_in_which_a_thread_waits_is_closed_later_without_an_error() -> None:
    live = Live()
    iterator = etl.AsyncIterator(iter(live))
    batches = iter(iterator)
    next(batches), next(batches)
    assert live.waits.wait(10)
    with pytest.warns(RuntimeWarning, match="batch 2 of generator: not finished"):
        iterator.close()
    end(live)


def test_an_error_of_the_step_is_shown_by_fit() -> None:
    torch = pytest.importorskip("torch")
    live = Live()

    class Failing(torch.nn.Linear):
        def forward(self, inputs: Any) -> Any:
            assert live.waits.wait(10)
            raise ZeroDivisionError("in the step")

    with pytest.warns(RuntimeWarning, match="of Live: not finished"), pytest.raises(ZeroDivisionError, match="in the"):
        etl.fit(Failing(3, 2), etl.AsyncIterator(live, prefetch_size=3), backend="cpu")
    end(live)


def test_the_next_epoch_is_refused_while_a_thread_is_in_the_iterable_and_works_afterwards() -> None:
    live = Live()
    iterator, epochs = until_it_waits(live)
    with pytest.warns(RuntimeWarning, match=LEFT):
        epochs.clear()
    with pytest.raises(RuntimeError, match=r"Live cannot begin an epoch: a thread .* still waits for its batch 2"):
        iter(iterator)
    end(live)
    live.waits.clear()
    live.put()
    batches = iter(iterator)
    assert next(batches)[0].shape == (2, 3)
    assert live.waits.wait(10)
    with pytest.warns(RuntimeWarning, match="batch 1 of Live"):
        batches.close()  # type: ignore[attr-defined]
    end(live)


def test_a_record_that_hangs_is_named_and_its_batch_is_not_written_over_a_later_one() -> None:
    records = Sleepy()
    iterator = etl.AsyncIterator(etl.RawIterator(records, NOTHING, 4), threads=2)
    batches = iter(iterator)
    assert next(batches).labels.tolist() == [0, 1, 2, 3]
    assert records.waits.wait(10)
    with pytest.warns(RuntimeWarning, match=r"record 8 of Sleepy: .* the thread that waits for it is left"):
        batches.close()  # type: ignore[attr-defined]
    records.released.set()
    iterator.set_epoch(0)
    assert [batch.labels.tolist() for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


PROGRAM = """
import sys, threading
import etl
from tests.prefetch.test_leaving_loops import Live

live = Live()
for number, batch in enumerate(etl.AsyncIterator(live)):
    if number == 1:
        live.waits.wait()
        print("waiting", flush=True)
        if sys.argv[1] == "exit":
            sys.exit(7)
"""


@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("interrupt", -signal.SIGINT)])
def test_the_end_of_the_program_and_ctrl_c_do_not_wait(how: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == code


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_a_used_iterator_is_independent_of_it(twin: Callable[[Any], Any], workers: str) -> None:
    records = [{"features": np.full(2, index, np.float32), "label": index} for index in range(24)]
    raw = etl.RawIterator(records, NOTHING, 4, shuffle=True)
    iterator = etl.AsyncIterator(raw, workers=workers, processes=1)
    whole = [batch.labels.tolist() for batch in iterator]
    iterator.set_epoch(0)
    batches = iter(iterator)
    got = [next(batches).labels.tolist()]
    other = twin(iterator)
    assert [batch.labels.tolist() for batch in other] == whole
    other.close()
    assert got + [batch.labels.tolist() for batch in batches] == whole
    iterator.close()
