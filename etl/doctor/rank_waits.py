"""Waits for other ranks in the steps of a training, as torch's profiler shows them. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch.autograd.profiler import profile

from etl.doctor.setup import Setup
from etl.doctor.steps import time_steps

PROFILED_BATCHES = 10
# Names in a profile: calls of torch.distributed, their spans from call to completion under gloo, and computation.
CALL, SPAN, COMPUTATION = "c10d", "gloo:", ("aten::", "autograd::engine")

Interval = tuple[float, float]


@dataclass(frozen=True)
class RankWaits:
    """Waits of a rank for the others, and its calls of torch.distributed, in each step."""

    calls: float
    # Share of the time of the steps in which such a call was not complete and this rank computed nothing, including the
    # transfer. None if the profiler does not show when calls complete, as with NCCL.
    share: float | None


def time_rank_waits(setup: Setup) -> RankWaits | None:
    """Train on a few batches under torch's profiler; return the waits, or None if nothing is sent to other ranks.

    The number of steps does not depend on time, so that all ranks can do the same together.
    """
    profiler = profile()
    times, _ = time_steps(setup, PROFILED_BATCHES, lambda: profiler)
    calls = 0
    spans: list[Interval] = []
    computing: list[Interval] = []
    for event in profiler.function_events or ():
        interval = event.time_range.start / 1e6, event.time_range.end / 1e6
        if event.name.startswith(SPAN):
            spans.append(interval)
        elif CALL in event.name:
            calls += 1
        elif event.name.startswith(COMPUTATION):
            computing.append(interval)
    if calls == 0:
        return None
    # Each call has a span if it runs under gloo.
    share = min(1.0, duration_outside(spans, computing) / sum(times.compute)) if len(spans) >= calls else None
    return RankWaits(calls / PROFILED_BATCHES, share)


def duration_outside(intervals: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Return the total duration in which one of `intervals` and none of `others` is in progress."""
    changes = [
        (time, kind, change)
        for kind, each in enumerate((intervals, others))
        for start, end in each
        for time, change in ((start, 1), (end, -1))
    ]
    open_intervals = [0, 0]
    total = before = 0.0
    for time, kind, change in sorted(changes):
        if open_intervals[0] and not open_intervals[1]:
            total += time - before
        open_intervals[kind] += change
        before = time
    return total
