"""Steps that run beside the loop: one at a time, none queued; stall is the wait in which the device was idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from etl.measuring import device as device_module
from etl.measuring.clock import DeviceStep, EpochTimes, Split, Step, run_epoch, seconds_of_step
from etl.measuring.device import OneInFlight, SimulatedDevice


class Batch:
    def __len__(self) -> int:
        return 1

    def arrays(self) -> list[np.ndarray]:
        return [np.ones(8)]


class Device:
    """A device that does its work in order, in a thread of its own, like a stream."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.given = self.done = 0
        self.max_in_flight = 0
        self.may_continue = threading.Event()
        self.may_continue.set()

    def step(self, batch: object) -> None:
        self.given += 1
        self.max_in_flight = max(self.max_in_flight, self.given - self.done)
        self.give(self._compute)

    def give(self, work: Callable[[], None]) -> Future[None]:
        return self._thread.submit(work)

    def _compute(self) -> None:
        self.may_continue.wait()
        time.sleep(0.002)
        self.done += 1

    def make_event(self) -> Mark:
        return Mark(self)


class Mark:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.reached = 0.0

    def record(self) -> None:
        self._recorded = self._device.give(self._reach)

    def _reach(self) -> None:
        self.reached = time.perf_counter()

    def synchronize(self) -> None:
        self._recorded.result()

    def elapsed_time(self, end_event: Mark) -> float:
        return (end_event.reached - self.reached) * 1e3


def test_the_loop_continues_while_one_step_is_in_flight_and_queues_no_second_one() -> None:
    device = Device()
    step = OneInFlight(device.step, device.make_event)
    device.may_continue.clear()
    step(Batch())
    assert (device.given, device.done) == (1, 0)  # the call came back before the step was done
    device.may_continue.set()
    for _ in range(5):
        step(Batch())
    spans = step.finish()
    assert device.max_in_flight == 1
    assert device.done == 6
    assert len(spans) == 6
    assert all(began < ended for began, ended in spans)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))
    assert step.finish() == []


def test_a_loop_that_waits_comes_back_when_its_step_is_done() -> None:
    device = Device()
    step = OneInFlight(device.step, device.make_event, waits=True)
    for count in range(1, 4):
        step(Batch())
        assert device.done == count


def test_a_simulated_step_takes_its_time_once_and_begins_when_the_one_before_is_done() -> None:
    step = SimulatedDevice(0.01)
    for _ in range(4):
        step(Batch())
    spans = step.finish()
    assert len(spans) == 4
    assert all(ended - began >= 0.01 - 1e-9 for began, ended in spans)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


@pytest.mark.parametrize("waits", [False, True])
def test_a_simulated_step_is_waited_for_only_if_asked(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[float] = []
    monkeypatch.setattr(device_module, "wait_until", waited_for.append)
    SimulatedDevice(60.0, waits)(Batch())
    assert len(waited_for) == waits


@pytest.mark.parametrize(
    "make_step",
    [lambda: SimulatedDevice(0.003), lambda: OneInFlight(*(lambda device: (device.step, device.make_event))(Device()))],
    ids=["simulated", "events"],
)
def test_the_parts_of_an_epoch_beside_a_device_add_up(make_step: Callable[[], Step]) -> None:
    step = make_step()
    assert isinstance(step, DeviceStep)

    def batches() -> Iterator[Batch]:
        for seconds in (0.004, 0.001, 0.006, 0.001):
            time.sleep(seconds)
            yield Batch()

    for _ in range(2):  # the second epoch has only its own steps
        times = run_epoch(batches(), step)
        assert times.batches == 4
        assert times.stall.total <= times.host_wait.total
        assert times.compute.total >= 4 * 0.002
        assert times.compute.total + times.stall.total <= times.wall.total + 1e-9
        # The rest is the loop's own, while the device had nothing to do: before it asks, before a step, and at the end.
        free = np.concatenate([[times.started], times.done[:-1]])
        own = np.maximum(0.0, times.asked - free).sum() + (times.began - np.maximum(times.loaded, free)).sum()
        own += max(0.0, times.last_asked - times.done[-1]) + times.ended - max(times.exhausted, times.done[-1])
        assert times.wall.total - times.compute.total - times.stall.total == pytest.approx(own, abs=1e-9)
        assert (times.began >= times.loaded).all()
        assert times.ended >= times.done[-1]


# Requests and arrivals of batches, their steps, and the last request, its return, and the end of the last step.
LATE = ([0.0, 3.0, 6.0], [2.0, 5.0, 9.0], [2.0, 5.0, 9.0], [5.0, 8.0, 12.0], 9.5, 10.0, 12.0)
IN_TIME = ([0.0, 2.0, 5.0], [2.0, 3.0, 6.0], [2.0, 5.0, 8.0], [5.0, 8.0, 11.0], 8.0, 14.0, 14.0)


@pytest.mark.parametrize(
    ("moments", "stalled", "stall"),
    [
        # The second batch is loaded just when the device becomes idle, the third a second later.
        (LATE, [0.0, 5.0, 8.0], Split(2.0, 1.0)),
        # The device is busy until both are loaded, and then idle until the iterator ends.
        (IN_TIME, [0.0, 3.0, 6.0], Split(2.0, 0.0, 3.0)),
    ],
    ids=["late", "in time"],
)
def test_stall_is_the_wait_that_the_previous_step_did_not_cover(
    moments: tuple[Any, ...], stalled: list[float], stall: Split
) -> None:
    asked, loaded, began, done = map(np.array, moments[:4])
    times = EpochTimes(0.0, asked, loaded, began, done, *moments[4:], samples=3)
    assert times.stalled.tolist() == stalled
    assert times.stall == stall
    assert times.host_wait == Split(2.0, (loaded - asked)[1:].sum(), times.exhausted - times.last_asked)
    assert times.compute.total == 9.0
    assert times.wall.total == times.compute.total + times.stall.total


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_that_was_left_in_flight_does_not_count_in_compute_alone(waits: bool) -> None:
    step = SimulatedDevice(0.5, waits)
    step(Batch())
    assert 0.5 <= seconds_of_step(step, [Batch()], seconds=0.0, min_steps=1) < 0.9


def test_compute_alone_is_the_mean_of_whole_passes() -> None:
    seen: list[int] = []
    batches = [1, 2, 3]
    seconds = seconds_of_step(seen.append, batches, seconds=0.0, min_steps=4)
    assert seen == batches * 2
    assert seconds > 0


def test_a_first_step_that_failed_leaves_nothing_to_finish() -> None:
    device = Device()

    def fail(batch: object) -> None:
        raise RuntimeError("no memory")

    step = OneInFlight(fail, device.make_event)
    with pytest.raises(RuntimeError, match="no memory"):
        step(Batch())
    assert step.finish() == []


def test_without_a_device_stall_and_host_wait_are_the_same() -> None:
    times = run_epoch([Batch(), Batch()], lambda _: None)
    assert times.stall == times.host_wait


class Clocked:
    """Events of a device whose clock moves by one second with each of them."""

    now = 0.0

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        """Note the time."""
        Clocked.now += 1.0
        self.at = Clocked.now

    def synchronize(self) -> None:
        """Do nothing: the device is done at once."""

    def elapsed_time(self, end_event: Clocked) -> float:
        """Return the milliseconds between two events."""
        return (end_event.at - self.at) * 1e3


def test_a_step_gets_its_batch_from_put_and_the_time_until_it_is_there_is_its_transfer() -> None:
    given: list[str] = []
    step = OneInFlight(given.append, Clocked, put=lambda batch: f"{batch} on the device")
    step("a")
    step("b")
    spans = step.finish()
    assert given == ["a on the device", "b on the device"]
    assert step.transfers == [1.0, 1.0]
    assert [ended - began for began, ended in spans] == pytest.approx([2.0, 2.0])  # a transfer is a part of its step
    assert step.finish() == []
    assert step.transfers == []


def test_a_step_that_gets_its_batch_as_it_is_has_no_transfer() -> None:
    step = OneInFlight(lambda _: None, Clocked)
    step("a")
    step.finish()
    assert step.transfers == [0.0]
