"""A step that goes on beside the loop: one at a time, none queued, and stall is what the device did not cover."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from etl.measuring.clock import DeviceStep, EpochTimes, Step, run_epoch
from etl.measuring.device import OneInFlight, SimulatedDevice


class Batch:
    def __len__(self) -> int:
        return 1

    def arrays(self) -> list[np.ndarray]:
        return [np.ones(8)]


class Device:
    """Does what it is given in order, in a thread of its own, as a stream does."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.given = self.done = 0
        self.most_in_flight = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def step(self, batch: object) -> None:
        self.given += 1
        self.most_in_flight = max(self.most_in_flight, self.given - self.done)
        self.give(self._compute)

    def give(self, work: Callable[[], None]) -> Future[None]:
        return self._thread.submit(work)

    def _compute(self) -> None:
        self.may_go_on.wait()
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


def test_the_loop_goes_on_while_one_step_is_in_flight_and_no_second_one_is_queued() -> None:
    device = Device()
    step = OneInFlight(device.step, device.make_event)
    device.may_go_on.clear()
    step(Batch())
    assert (device.given, device.done) == (1, 0)  # the call came back before the step was done
    device.may_go_on.set()
    for _ in range(5):
        step(Batch())
    spans = step.finish()
    assert device.most_in_flight == 1
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
    assert all(ended - began >= 0.01 for began, ended in spans)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


@pytest.mark.parametrize("waits", [False, True])
def test_a_simulated_step_is_waited_for_only_if_asked(waits: bool) -> None:
    step = SimulatedDevice(60.0 if not waits else 0.01, waits)
    started = time.perf_counter()
    step(Batch())
    came_back = time.perf_counter()
    if waits:
        assert came_back - started >= 0.01
    else:
        assert came_back - started < 60.0


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
        assert (times.began >= times.loaded).all()
        assert times.ended >= times.done[-1]


def test_stall_is_what_the_step_before_did_not_cover() -> None:
    # asked 0, 3, 6; there at 2, 5, 9; steps 2-5, 5-8, 9-12: batch 1 came as the device was free, batch 2 one later.
    times = EpochTimes(
        started=0.0,
        asked=np.array([0.0, 3.0, 6.0]),
        loaded=np.array([2.0, 5.0, 9.0]),
        began=np.array([2.0, 5.0, 9.0]),
        done=np.array([5.0, 8.0, 12.0]),
        last_asked=9.5,
        exhausted=10.0,
        ended=12.0,
        samples=3,
    )
    assert (times.stall.first, times.stall.rest) == (2.0, 1.0)
    assert (times.host_wait.first, times.host_wait.rest) == (2.0, 2.0 + 3.0 + 0.5)
    assert times.compute.total == 9.0
    assert times.wall.total == times.compute.total + times.stall.total


def test_without_a_device_stall_and_host_wait_are_the_same() -> None:
    times = run_epoch([Batch(), Batch()], lambda _: None)
    assert times.stall == times.host_wait
