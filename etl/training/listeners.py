"""Listeners follow a fit; `PerformanceListener` reports where the time of training goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from etl.arguments import whole_number
from etl.runtime.gc_watch import Collections, CollectionWatch


@dataclass(frozen=True)
class Iteration:
    """One iteration: a batch waited for, and trained on.

    `number` counts from 0 over the whole fit. `etl_seconds` is the wait for the batch, `compute_seconds` moving it to
    the device, forward, backward and update; `seconds` is from the end of the iteration before (for the first, from
    the start of the epoch) to the end of this one, so that all iterations add up to the epoch. `score` is the loss, a
    tensor without gradient on the device: reading it waits for the device.
    """

    number: int
    epoch: int
    samples: int
    etl_seconds: float
    compute_seconds: float
    seconds: float
    score: Any
    device: str


class Listener(Protocol):
    """Follows a fit. `needs_times` asks `fit` to wait for the device in every iteration, so that times are exact."""

    needs_times: bool

    def fit_started(self) -> None:
        """Before the first batch is asked for."""

    def iteration_done(self, iteration: Iteration) -> None:
        """After every iteration."""

    def fit_ended(self) -> None:
        """After the last iteration; also when the fit failed."""


@dataclass(frozen=True)
class Performance:
    """The iterations since the report before: means over `iterations` of them, the last being number `iteration`.

    ETL is the wait for a batch; `iteration_seconds` is all of an iteration, ETL included. `score` is that of the last.
    """

    iteration: int
    iterations: int
    etl_seconds: float
    compute_seconds: float
    iteration_seconds: float
    samples_per_second: float
    batches_per_second: float
    score: float | None
    collections: tuple[Collections, ...]
    device: str


class PerformanceListener:
    """Reports every `frequency` iterations, each figure over all iterations since the report before.

    The first iteration, with start-up and the first batch's wait in it, is reported alone and mixed into no other. A
    line looks like DL4J's::

        ETL: 0.08 ms; iteration 20; iteration time: 17.31 ms; samples/sec: 1848.6; batches/sec: 57.77; score: 0.722934;
        GC: [gen0: 2 (0.41 ms)], [gen1: 0 (0.00 ms)], [gen2: 0 (0.00 ms)]

    Each part can be switched off. GC counts all collections since the report before, as the times do. The device is
    named where there are several, or with `report_device=True`. `output` is called with each line, `on_report` with
    the `Performance`; `last` is the latest one.
    """

    needs_times = True

    def __init__(
        self,
        frequency: int = 1,
        report_score: bool = False,
        report_gc: bool = False,
        *,
        report_etl: bool = True,
        report_iteration: bool = True,
        report_time: bool = True,
        report_samples: bool = True,
        report_batches: bool = True,
        report_device: bool | None = None,
        output: Callable[[str], None] = print,
        on_report: Callable[[Performance], None] | None = None,
    ) -> None:
        self.frequency = whole_number("frequency", frequency, least=1)
        self.last: Performance | None = None
        self._parts = {
            "etl": report_etl,
            "iteration": report_iteration,
            "time": report_time,
            "samples": report_samples,
            "batches": report_batches,
            "score": report_score,
            "gc": report_gc,
        }
        self._report_device = report_device
        self._output = output
        self._on_report = on_report
        self._collections = CollectionWatch()
        self._window: list[Iteration] = []

    def fit_started(self) -> None:
        """Begin watching collections."""
        self._window = []
        self._collections.start()

    def iteration_done(self, iteration: Iteration) -> None:
        """Report if this is the first iteration or `frequency` of them have passed since the last report."""
        self._window.append(iteration)
        if iteration.number == 0 or len(self._window) == self.frequency:
            self._report()

    def fit_ended(self) -> None:
        """Report the iterations since the last report, and stop watching."""
        try:
            if self._window:
                self._report()
        finally:
            self._collections.stop()

    def _report(self) -> None:
        window, self._window = self._window, []
        last = window[-1]
        seconds = sum(each.seconds for each in window)
        performance = Performance(
            iteration=last.number,
            iterations=len(window),
            etl_seconds=sum(each.etl_seconds for each in window) / len(window),
            compute_seconds=sum(each.compute_seconds for each in window) / len(window),
            iteration_seconds=seconds / len(window),
            samples_per_second=_rate(sum(each.samples for each in window), seconds),
            batches_per_second=_rate(len(window), seconds),
            score=float(last.score) if self._parts["score"] else None,
            collections=tuple(self._collections.take()),
            device=last.device,
        )
        self.last = performance
        self._output(self._line(performance))
        if self._on_report is not None:
            self._on_report(performance)

    def _line(self, performance: Performance) -> str:
        collections = ", ".join(
            f"[gen{each.generation}: {each.count} ({each.seconds * 1e3:.2f} ms)]" for each in performance.collections
        )
        parts = {
            "etl": f"ETL: {performance.etl_seconds * 1e3:.2f} ms",
            "iteration": f"iteration {performance.iteration}",
            "time": f"iteration time: {performance.iteration_seconds * 1e3:.2f} ms",
            "samples": f"samples/sec: {performance.samples_per_second:.1f}",
            "batches": f"batches/sec: {performance.batches_per_second:.2f}",
            "score": "score: -" if performance.score is None else f"score: {performance.score:.6g}",
            "gc": f"GC: {collections}",
        }
        shown = [text for part, text in parts.items() if self._parts[part]]
        if self._names_device():
            shown.insert(0, f"device: {performance.device}")
        return "; ".join(shown)

    def _names_device(self) -> bool:
        if self._report_device is None:
            import torch

            return torch.cuda.device_count() > 1
        return self._report_device


def _rate(count: int, seconds: float) -> float:
    # A clock too coarse to see an iteration has no rate to give; infinity would spoil every mean it enters.
    return count / seconds if seconds > 0 else float("nan")
