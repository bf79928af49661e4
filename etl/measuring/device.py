"""Steps of a device with at most one in flight, and a device that is only simulated."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from .clock import Span, Step
from .meeting import Meeting


class Event(Protocol):
    """A mark in the queue of a device, such as `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None:
        """Put the mark after all work that the device was given so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this mark to another one."""


class OneInFlight:
    """A `DeviceStep` that runs `step` on a device, with at most one step in flight.

    This is how a training loop behaves that reads its loss every few steps: it loads the next batch while the device
    computes, and does not queue steps.

    Parameters
    ----------
    step : callable
        Gives the work on a batch to the device. The batch may be released when it returns.
    make_event : callable
        Returns a new `Event` of the device.
    put : callable, optional
        Copies a batch to the device, and returns what `step` is called with: by default the batch itself.

    Attributes
    ----------
    transfers : list of float
        Seconds that each step waited for the copy of its batch, of those whose spans `finish` returned last.
    """

    def __init__(
        self,
        step: Step,
        make_event: Callable[[], Event],
        waits: bool = False,
        put: Callable[[Any], Any] | None = None,
    ) -> None:
        self.transfers: list[float] = []
        self._step = step
        self._make_event = make_event
        self._waits = waits
        self._put = put
        # When each step began, had its batch on the device, and ended.
        self._marks: list[tuple[Event, Event, Event]] = []
        # When each step was known to be done.
        self._known: list[float] = []
        # A mark of the device, and the time of this process's clock when the device reached it.
        self._zero: tuple[Event, float] | None = None

    def __call__(self, batch: Any) -> None:
        if self._zero is None:
            zero = self._make_event()
            zero.record()
            zero.synchronize()
            self._zero = zero, time.perf_counter()
        self._wait()
        began, ended = self._make_event(), self._make_event()
        began.record()
        copied = began
        if self._put is not None:
            batch = self._put(batch)
            copied = self._make_event()
            copied.record()
        self._step(batch)
        ended.record()
        self._marks.append((began, copied, ended))
        if self._waits:
            self._wait()

    def finish(self) -> list[Span]:
        """Wait until the last step is done, and return the spans of all steps since `finish` was last called."""
        self._wait()
        self.transfers = [
            0.0 if copied is began else began.elapsed_time(copied) / 1e3 for began, copied, _ in self._marks
        ]
        if self._zero is None:
            return []
        zero, at = self._zero
        marks = [(zero.elapsed_time(began) / 1e3, zero.elapsed_time(ended) / 1e3) for began, _, ended in self._marks]
        # This process learns of each mark, the zero included, a little after the device has reached it. So the zero was
        # reached at the earliest time that any mark implies.
        at = min([at, *(known - ended for known, (_, ended) in zip(self._known, marks, strict=True))])
        self._marks, self._known, self._zero = [], [], None
        return [(at + began, at + ended) for began, ended in marks]

    def _wait(self) -> None:
        if len(self._known) < len(self._marks):
            self._marks[-1][2].synchronize()
            self._known.append(time.perf_counter())


def peak_device_memory() -> int | None:
    """Return the most bytes that torch's allocator had given out on CUDA devices; None if this process used none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())))


class SimulatedDevice:
    """A `DeviceStep` that takes a fixed time and no CPU, with one step running and none queued."""

    def __init__(self, seconds: float, waits: bool = False, meeting: Meeting | None = None) -> None:
        self.seconds = seconds
        self._waits = waits
        self._meeting = meeting
        # When the step was given that may still run.
        self._given: float | None = None
        self._spans: list[Span] = []

    def __call__(self, batch: Any) -> None:  # noqa: ARG002 - nothing is done with it
        self._wait()
        self._given = time.perf_counter()
        if self._meeting is not None:
            self._meeting.arrive(self._given)
        if self._waits:
            self._wait()

    def finish(self) -> list[Span]:
        """Wait until the last step is done, and return the spans of all steps since `finish` was last called."""
        self._wait()
        spans, self._spans = self._spans, []
        return spans

    def _wait(self) -> None:
        given, self._given = self._given, None
        if given is None:
            return
        began = given if self._meeting is None else max(self._meeting.collect())
        ends = began + self.seconds
        if time.perf_counter() < ends:
            wait_until(ends)
            ends = time.perf_counter()  # a late wake-up counts as part of the step, since the loop waited for it
        self._spans.append((given, ends))


def wait_until(moment: float) -> None:
    """Sleep until `time.perf_counter` has reached `moment`, never less."""
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
    while time.perf_counter() < moment:  # a sleep may end early by the resolution of the clock
        pass
