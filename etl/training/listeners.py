"""Listeners of a fit: the protocol, and `PerformanceListener`, which reports how much time goes to ETL and compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from etl.arguments import whole_number
from etl.runtime.gc_watch import Collections, CollectionWatch

if TYPE_CHECKING:
    from etl.training.training import Training


@dataclass(frozen=True)
class Iteration:
    """One iteration of a fit: the wait for a batch, and a training step on it.

    Attributes
    ----------
    number : int
        Index of the iteration, from 0 over the whole fit.
    epoch : int
        The epoch.
    samples : int
        Records in the batch.
    etl_seconds : float
        Wait for the batch.
    compute_seconds : float
        Moving the batch to the device, forward, backward and update.
    seconds : float
        From the end of the previous iteration (for the first one, from the start of the epoch) to the end of this one.
        Over an epoch they add up to its duration.
    score : tensor
        Loss, detached, on the device. Reading its value waits for the device.
    device : str
        Device of the backend, such as "cuda:0".
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
    """The protocol of a listener.

    Two more methods are run if it has them: `training_started(training)`, before `fit_started`, with the
    `etl.training.training.Training` that it can stop, which needs `may_stop = True` if `epochs` is None; and
    `epoch_done(epoch)`, after every whole epoch. One with `state_dict` and `load_state_dict` is part of a checkpoint.
    Listeners run in the order given, those with `runs_last = True` after the others.

    Attributes
    ----------
    needs_times : bool
        If True, `fit` waits for the device in every iteration, so that times are exact.
    """

    needs_times: bool

    def fit_started(self) -> None:
        """Run before the first batch is asked for."""

    def iteration_done(self, iteration: Iteration) -> None:
        """Run after every iteration."""

    def fit_ended(self) -> None:
        """Run after the last iteration, even if the fit failed."""


@dataclass(frozen=True)
class Performance:
    """Means over the iterations since the previous report.

    Attributes
    ----------
    iteration : int
        Index of the last iteration.
    iterations : int
        Number of iterations in the report.
    etl_seconds : float
        Mean wait for a batch.
    compute_seconds : float
        Mean time of a training step.
    iteration_seconds : float
        Mean time of an iteration, ETL included.
    samples_per_second, batches_per_second : float
        Rates over all iterations of the report.
    score : float or None
        Loss of the last iteration; None unless scores are reported.
    collections : tuple of Collections
        Garbage collections since the previous report, one entry for each generation.
    device : str
        Device of the backend.
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
    """Reports the time of ETL and compute every `frequency` iterations, as means since the previous report.

    The first iteration is reported alone, since it includes start-up and the wait for the first batch. A line looks
    like DL4J's::

        ETL: 0.08 ms; iteration 20; iteration time: 17.31 ms; samples/sec: 1848.6; batches/sec: 57.77; score: 0.722934;
        GC: [gen0: 2 (0.41 ms)], [gen1: 0 (0.00 ms)], [gen2: 0 (0.00 ms)]

    With several ranks, rank 0 writes the lines of all of them, each beginning with its rank, and their total rates.
    Every report then waits for all ranks.

    Parameters
    ----------
    frequency : int
        Iterations between two reports.
    report_score : bool
        Show the loss of the last iteration.
    report_gc : bool
        Show the garbage collections since the previous report.
    report_etl : bool
        Show the mean wait for a batch.
    report_iteration : bool
        Show the number of the iteration.
    report_time : bool
        Show the mean time of an iteration.
    report_samples : bool
        Show samples per second.
    report_batches : bool
        Show batches per second.
    report_device : bool, optional
        Show the device. By default only if there are several.
    output : callable
        Called with each line.
    on_report : callable, optional
        Called with each `Performance`.

    Attributes
    ----------
    last : Performance or None
        The latest report of this rank.

    Examples
    --------
    >>> train = etl.SyntheticIterator((8,), classes=4, batches=10)
    >>> listener = etl.PerformanceListener(frequency=5)
    >>> _ = etl.fit(etl.models.create("mlp", (8,), 4), train, backend="cpu", listeners=[listener])
    ETL: ... ms; iteration ...
    ETL: ... ms; iteration ...
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
        self._training: Training | None = None

    def training_started(self, training: Training) -> None:
        """Note the ranks, which must report after the same iterations."""
        training.ranks.check_equal("frequency of PerformanceListener", self.frequency)
        self._training = training

    def fit_started(self) -> None:
        """Start counting garbage collections."""
        self._window = []
        self._collections.start()

    def iteration_done(self, iteration: Iteration) -> None:
        """Report if this is the first iteration or `frequency` of them have passed since the last report."""
        self._window.append(iteration)
        if iteration.number == 0 or len(self._window) == self.frequency:
            self._report()

    def fit_ended(self) -> None:
        """Report the iterations since the last report, and stop counting garbage collections."""
        has_failed = self._training is not None and self._training.failed
        try:
            if self._window and not (has_failed and self._ranks > 1):
                self._report()
        finally:
            self._collections.stop()
            self._training = None  # nor does it keep the model alive

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
        self._write(performance)
        if self._on_report is not None:
            self._on_report(performance)

    @property
    def _ranks(self) -> int:
        return 1 if self._training is None else self._training.ranks.world_size

    def _write(self, performance: Performance) -> None:
        if self._training is None or self._ranks == 1:
            self._output(self._line(performance))
            return
        everyone = self._training.ranks.gather(performance)
        if self._training.ranks.rank != 0:
            return
        for rank, each in enumerate(everyone):
            self._output(f"rank {rank}: {self._line(each)}")
        samples = sum(each.samples_per_second for each in everyone)
        batches = sum(each.batches_per_second for each in everyone)
        self._output(f"all {self._ranks} ranks: samples/sec: {samples:.1f}; batches/sec: {batches:.2f}")

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
    # If the clock is too coarse to time an iteration, the rate is unknown; infinity would spoil every mean.
    return count / seconds if seconds > 0 else float("nan")
