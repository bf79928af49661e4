"""The clock of loops: what is a wait, a step and the start of an epoch, for one loader, nested ones and several."""

from __future__ import annotations

import itertools
import sys
import threading
import types
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from etl.watching import times as watched
from etl.watching.session import Session
from etl.watching.stacks import PREFETCHERS, MemoryWatch, note_places

WAIT, STEP = 0.01, 0.02


class Clock:
    """A clock that only `sleep` moves."""

    now = 1.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "perf_counter", CLOCK)


class Slow:
    """Batches that take `WAIT` each; the first one of an epoch three times as long."""

    def __init__(self, batches: int = 4) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self._batches):
            CLOCK.sleep(3 * WAIT if number == 0 else WAIT)
            yield [number] * 5


def test_memory_is_looked_at_in_epochs_alone() -> None:
    session = Session()

    def looked() -> int:
        session.memory = MemoryWatch()
        session.look_at_memory()
        return len(session.memory.notes)

    def batches() -> Iterator[list[int]]:
        assert looked() == 1  # a wait
        yield [0]

    assert looked() == 0
    for _ in session.epoch(batches()):
        assert looked() == 1
    assert looked() == 0


def test_waits_steps_and_starts_are_told_apart() -> None:
    session, loader = Session(), Slow()
    for _ in range(3):
        for _ in session.epoch(loader):
            CLOCK.sleep(STEP)
        CLOCK.sleep(5 * STEP)  # between epochs, which is neither
    (found,) = session.loops
    assert (found.name, found.batches, found.batch_records, found.is_remade) == ("Slow", 12, 5, False)
    assert len(found.starts) == 3
    assert found.starts == pytest.approx([3 * WAIT] * 3)
    assert found.stepped == pytest.approx(11 * STEP)
    assert found.waited == pytest.approx(9 * WAIT + 2 * 3 * WAIT)  # not the very first one


def test_the_first_batch_of_all_does_not_tell_where_loading_is_and_how_long_a_batch_takes() -> None:
    session = Session()

    def batches() -> Iterator[list[int]]:
        for batch in Slow():
            note_places(session.clock.activities, {threading.get_ident(): sys._getframe()})
            yield batch

    for _ in session.epoch(batches()):
        pass
    (found,) = session.loops
    assert all(each.seconds == pytest.approx(WAIT) for each in found.fetches)
    assert found.loads_here == found.batches - 1


def test_of_nested_loaders_the_outermost_counts() -> None:
    session, inner = Session(), Slow()

    class Outer:
        def __iter__(self) -> Iterator[list[int]]:
            yield from session.epoch(inner)

    for _ in session.epoch(Outer()):
        pass
    (found,) = (each for each in session.loops if each.batches)
    assert found.name == "Outer"


def test_two_loaders_at_once_share_no_second() -> None:
    session = Session()
    began = CLOCK()
    for _ in zip(session.epoch(Slow()), session.epoch(Slow()), strict=True):
        CLOCK.sleep(STEP)
    took = CLOCK() - began
    first, second = session.loops
    assert first.batches == second.batches == 4
    for each in (first, second):
        assert each.stepped == pytest.approx(3 * STEP)
        assert sum(each.starts) + each.waited + each.stepped < took - 3 * WAIT


def test_loaders_that_a_script_makes_anew_for_each_epoch_share_their_times_unless_their_lengths_differ() -> None:
    session = Session()
    for _ in range(3):
        for batches in (4, 2):  # such as training and validation
            for _ in session.epoch(Slow(batches)):
                pass
    assert [(each.batches, len(each.starts), each.is_remade) for each in session.loops] == [(12, 3, True), (6, 3, True)]


class Stream(IterableDataset[int]):
    """A data set that has no length."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._records))


def test_streams_of_training_and_validation_are_two_loops_though_they_have_no_length() -> None:
    session, streams = Session(), (Stream(8), Stream(4))
    training, validation = (DataLoader(stream, batch_size=2) for stream in streams)
    for _ in range(2):
        for loader in (training, validation):
            for _ in session.epoch(loader):
                pass
    kept = [DataLoader(stream, batch_size=2) for stream in streams]  # as by a trainer, for a further epoch
    for loader in kept:
        for _ in session.epoch(loader):
            pass
    assert [(each.batches, len(each.starts)) for each in session.loops] == [(12, 3), (6, 3)]


def test_a_loop_that_is_left_has_no_step_until_the_next_epoch() -> None:
    session, loader = Session(), Slow()
    for _ in session.epoch(loader):
        break
    CLOCK.sleep(5 * STEP)
    for _ in session.epoch(loader):
        pass
    (found,) = session.loops
    assert (found.batches, len(found.starts)) == (5, 2)
    assert found.stepped == 0


def test_the_last_step_of_an_epoch_that_is_left_counts_as_the_one_before() -> None:
    session, loader = Session(), Slow()
    for _ in range(3):
        batches = session.epoch(loader)
        for _ in range(4):  # and no fifth, as Lightning does
            next(batches)
            CLOCK.sleep(STEP)
        CLOCK.sleep(5 * STEP)
    (found,) = session.loops
    assert found.stepped == pytest.approx(10 * STEP)  # without the very first one, and the last
    assert found.epochs == 2


def test_epochs_of_a_loader_that_repeats_itself_are_told_by_their_length() -> None:
    session = Session()
    batches = session.epoch(Slow(batches=12))
    (found,) = session.loops
    found.epoch_length = 4
    for _ in range(3):
        for _ in range(4):
            next(batches)
            CLOCK.sleep(STEP)
        CLOCK.sleep(100.0)  # such as a validation
    assert (len(found.starts), found.epochs) == (3, 2)
    assert found.stepped == pytest.approx(10 * STEP)


def test_a_loop_that_takes_one_batch_of_each_epoch_has_no_steps_and_no_epochs() -> None:
    session, loader = Session(), Slow()
    for _ in range(5):
        next(session.epoch(loader))
        CLOCK.sleep(STEP)
    (found,) = session.loops
    assert (found.batches, len(found.starts), found.stepped, found.epochs) == (5, 5, 0.0, 0)


def test_what_runs_between_epochs_and_after_a_loop_is_not_sampled_as_its_step() -> None:
    session = Session()

    def look() -> None:
        note_places(session.clock.activities, {threading.get_ident(): sys._getframe(1)})

    for _ in session.epoch(Slow(batches=3)):
        look()
    look()
    note_places(session.clock.activities, {})  # as if the thread had ended
    (found,) = session.loops
    assert found.step_samples == found.stepping.total() == 3


def test_lines_of_a_models_forward_pass_are_not_those_of_the_loop() -> None:
    session = Session()

    class Model(torch.nn.Module):
        def forward(self) -> None:
            note_places(session.clock.activities, {threading.get_ident(): sys._getframe()})

    model = Model()
    for _ in session.epoch(Slow(batches=3)):
        model()
    (found,) = session.loops
    assert (found.step_samples, found.stepping.total()) == (3, 0)


def test_a_step_in_which_its_thread_waits_for_others_is_told() -> None:
    session = Session()

    def look() -> None:
        note_places(session.clock.activities, {threading.get_ident(): sys._getframe(1)})

    names: dict[str, Any] = {}
    exec(compile("def put(look): look()", "/usr/lib/python3/queue.py", "exec"), names)  # noqa: S102 - as if of Python
    for _ in session.epoch(Slow(batches=3)):
        look()
        names["put"](look)
    (found,) = session.loops
    assert (found.step_samples, found.step_waits) == (6, 3)


def monitor() -> Generator[None, None, None]:
    yield  # as a thread that sleeps


@pytest.mark.parametrize(("settings", "samples"), [({}, 1), ({"num_workers": 0}, 1), ({"num_workers": 1}, 0)])
def test_other_threads_may_load_unless_worker_processes_do(settings: dict[str, int], samples: int) -> None:
    found, thread = watched.LoopTimes("loader", settings, batches=1), monitor()
    next(thread)
    note_places({1: watched.Activity(found, waits=True)}, {2: thread.gi_frame})
    assert found.loading.total() == samples


def test_a_thread_at_an_instruction_without_a_line_is_at_the_first_line_of_its_function() -> None:
    found = watched.LoopTimes("loader", {}, batches=1)
    thread = types.FunctionType(monitor.__code__.replace(co_linetable=b""), globals())()
    next(thread)
    assert thread.gi_frame.f_lineno is None
    note_places({1: watched.Activity(found, waits=True)}, {2: thread.gi_frame})
    assert [each.line for each in found.loading] == [monitor.__code__.co_firstlineno]


def test_threads_of_etl_load_rather_than_others() -> None:
    found, thread = watched.LoopTimes("AsyncIterator", {}, batches=1), monitor()
    next(thread)

    def load() -> None:
        note_places({1: watched.Activity(found, waits=True)}, {2: thread.gi_frame, 3: sys._getframe()})

    names: dict[str, Any] = {}
    exec(compile("def work(load): load()", f"{PREFETCHERS}threads.py", "exec"), names)  # noqa: S102 - as if of etl
    names["work"](load)
    assert [each.function.rpartition(".")[2] for each in found.loading] == ["load"]


def test_an_error_of_the_loader_is_raised_and_ends_the_wait() -> None:
    session = Session()

    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        for _ in session.epoch(failing()):
            pass
    assert not session.clock.is_waiting
    assert session.loops[0].batches == 1


def test_a_long_loop_keeps_few_blocks_and_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "MOST_BLOCKS", 8)
    moments = itertools.count()
    found = watched.LoopTimes("loader", {})
    found.note_start(0.0)
    for _ in range(1000):
        now = float(next(moments))
        found.note_step(now, 0.0)
        found.note_batch(0.25, now, 0.0, [1])
    assert len(found.blocks) <= 8
    assert sum(each.count for each in found.blocks) == found.batches == 1000
    assert found.stepped == 998
    assert found.waited == 999 * 0.25
    assert found.starts == [0.25]
