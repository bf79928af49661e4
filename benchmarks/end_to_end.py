"""End to end: the wall time of an epoch of training, ETL and compute together, along every axis.

`setup_cache` measures all cells once; the suites only look their metrics up.
"""

from __future__ import annotations

import abc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import AXES, GRID_AXES, PHOTOGRAPHS, Cell, cell_at, cells_to_measure, chosen_profile, values_in
from benchmarks.journal import CellMetrics
from benchmarks.measure import CellResults, cpus_of_cells, measure_cells
from benchmarks.suite import Suite, as_samples, attributes, explained
from benchmarks.user_loaders import check_functions, prepare_loaders
from benchmarks.workload import Data, make_data, unsupported_reason

PROFILE = chosen_profile()
check_functions(PROFILE.functions)
SMALLER = "Smaller is better."
MEASURING_TIMEOUT_SECONDS = 12 * 3600


def along(axis: str) -> Callable[[Any], Any]:
    """Return a decorator for the suite of an axis, which asv shows only if the profile measures the axis.

    Otherwise the suite stays abstract, which asv leaves out: all of its values would be n/a, and its chart blank.
    """

    def decorate(suite: Any) -> Any:
        if axis not in PROFILE.axes:
            return suite
        strategies, values = AXES[axis].strategies, list(values_in(PROFILE, axis))
        suite.params = [list(strategies), values] if strategies else [values]
        suite.param_names = ["strategy", axis] if strategies else [axis]
        abc.update_abstractmethods(suite)
        return explained(suite)

    return decorate


@dataclass(frozen=True)
class Measured:
    """The data, the samples of each cell or the text of its error, and what the commit lacks for other cells."""

    data: Data
    results: CellResults
    missing: dict[Cell, str]


class AxisSuite(Suite, ABC):
    """A suite along an axis, which a subclass chooses."""

    @property
    @abstractmethod
    def param_names(self) -> list[str]:
        """Axes of a suite, as fields of `Cell`."""

    def cell(self, *values: Any) -> Cell:
        """Return the cell at these values: that of the suite's axis, after a strategy if the axis has several."""
        *strategy, value = values
        return cell_at(self.param_names[-1], value, *strategy)


class EndToEnd(AxisSuite):
    """The metrics of one epoch, with a sample from every round. A subclass chooses the axis, and so the cells."""

    page_note = (
        f"One epoch trains a small residual network on {PROFILE.samples} photographs at {PROFILE.image_size} x "
        f"{PROFILE.image_size}: batches of 32, float32, on the CPU, unless it says otherwise. All have the same CPUs: "
        "compute has all of them except one for each thread or process that decodes ahead. Cells that should train on "
        "the same bytes were checked to do so. Values are medians of several fresh processes. Smaller is better, "
        "except for utilisation."
    )

    @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
    def setup_cache(self) -> Measured:
        reasons = {cell: unsupported_reason(cell) for cell in cells_to_measure(PROFILE)}
        cells = [cell for cell, reason in reasons.items() if not reason]
        data = make_data(PROFILE, Path.cwd(), cells)
        functions = {cell.strategy: PROFILE.functions[cell.strategy] for cell in cells if cell.is_foreign}
        prepare_loaders(functions, data, Path.cwd(), cpus_of_cells())
        return Measured(
            data, measure_cells(cells, data, PROFILE), {cell: reasons[cell] for cell in reasons if reasons[cell]}
        )

    def setup(self, cache: Measured, *values: Any) -> None:
        cell = self.cell(*values)
        if cell not in cache.results:
            raise NotImplementedError(_reason_not_measured(cache, cell))  # asv's n/a

    @attributes(unit="seconds")
    def track_wall(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds of one epoch: loading and compute, everything included."""
        return self._samples(cache, values, lambda metrics: metrics.epoch.wall.total)

    @attributes(unit="seconds")
    def track_etl(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds to load one epoch while nothing else is done."""
        return self._samples(cache, values, lambda metrics: metrics.etl)

    @attributes(unit="seconds")
    def track_compute(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds of one epoch spent in training steps, or in forward passes of inference."""
        return self._samples(cache, values, lambda metrics: metrics.epoch.compute.total)

    @attributes(unit="seconds")
    def track_stall(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds of one epoch in which compute waited for the next batch."""
        return self._samples(cache, values, lambda metrics: metrics.epoch.stall.total)

    @attributes(unit="seconds")
    def track_p99_stall(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds that 99 of 100 stalls before a batch did not exceed, leaving out the first batch of an epoch."""
        return self._samples(cache, values, lambda metrics: metrics.p99_stall, whole_epochs=False)

    @attributes(unit="seconds")
    def track_start_up(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds from the start of an epoch until its first batch can be read, which is part of the stall."""
        return self._samples(cache, values, lambda metrics: metrics.epoch.stall.first, whole_epochs=False)

    @attributes(unit="ratio")
    def track_utilisation(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Accelerator utilisation: the time of an epoch's steps on a batch in memory while nothing loads, over the wall
        time of an epoch. The only metric here for which larger is better: 1.0 loses nothing.
        """
        return self._samples(cache, values, lambda metrics: metrics.utilisation, whole_epochs=False)

    @attributes(unit="bytes")
    def track_peak_memory(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Bytes of memory at the peak, of the process and its children, without mapped libraries."""
        return self._samples(cache, values, lambda metrics: metrics.peak_memory, whole_epochs=False)

    def _samples(
        self,
        cache: Measured,
        values: tuple[Any, ...],
        metric: Callable[[CellMetrics], float],
        whole_epochs: bool = True,
    ) -> dict[str, Any]:
        """Return the samples of a metric.

        With `whole_epochs` it is the time of an epoch, which is given for as many photographs as most epochs have.
        """
        cell = self.cell(*values)
        measured = cache.results[cell]
        if isinstance(measured, str):
            raise RuntimeError(measured)
        scaled = whole_epochs and cell.workload == PHOTOGRAPHS
        return as_samples(
            [metric(each) * (cache.data.records / each.epoch.samples if scaled else 1) for each in measured]
        )


@along("strategy")
class Strategy(EndToEnd):
    """The ways to load, side by side: raw decodes every photograph in every epoch, presaved reads arrays from a store
    that was written once, each plain, or async: in the background, by one more thread. Base point: presaved. Other
    names are user loaders, which were checked to load as many records, of the same shapes and dtypes.
    """


@along("batch_size")
class BatchSize(EndToEnd):
    """Records in a batch. If there are fewer photographs than a batch has, they are repeated to fill it, and times are
    given for as many photographs as the other epochs have. Base point: presaved, batches of 32.
    """


@along("dtype")
class Dtype(EndToEnd):
    """The type of features and weights. Base point: presaved, float32."""


@along("backend")
class Backend(EndToEnd):
    """The device that computes, with at most one step in flight: cpu, and cuda where there is an NVIDIA driver.

    Base point: presaved, cpu.
    """

    @attributes(unit="seconds")
    def track_host_wait(self, cache: Measured, *values: Any) -> dict[str, Any]:
        """Seconds of one epoch in which the training loop waited for batches, even if the device computed."""
        return self._samples(cache, values, lambda metrics: metrics.epoch.host_wait.total)


@along("garbage_collection")
class GarbageCollection(EndToEnd):
    """CPython's garbage collector: as it is, switched off, or with all objects of the start-up frozen, where every
    photograph is decoded, which makes objects all the time. Base point: default.
    """


@along("heap")
class Heap(EndToEnd):
    """glibc's allocator: as it is, or keeping the pages of freed memory, where every photograph is decoded, which frees
    memory all the time. Base point: default.
    """


@along("prefetch_size")
class PrefetchSize(EndToEnd):
    """Batches that are loaded ahead of training; 0 loads none ahead. Base point: async-raw, which decodes every
    photograph in every epoch, in batches of 8, two ahead. Batches are small, so that an epoch has more of them than are
    loaded ahead.
    """


@along("workers")
class Workers(EndToEnd):
    """Threads or processes that load, and how many of them. Base point: async-raw, which decodes every
    photograph in every epoch, in batches of 8, two ahead, by one thread. The processes start before the epoch.
    """


@along("presave_format")
class PresaveFormat(EndToEnd):
    """The format of the store that is read. Base point: presaved, npy, written after the stage resize."""


@along("presave_stage")
class PresaveStage(EndToEnd):
    """The last stage of the pipeline that is done before the store is written; each epoch does the rest. In the order
    of the pipeline: the files' own bytes (read), pixels of every size (decode), pixels of one size (resize), float32
    that is ready for training (normalise). Base point: presaved, npy, resize.
    """


@along("compute")
class Compute(EndToEnd):
    """The work on each batch: a training step, or inference, which is a forward pass of the model in evaluation mode
    without gradients. Inference is shorter, so loading has less time to hide. Base point: presaved, training.
    """


@along("updater")
class Updater(EndToEnd):
    """The optimizer that updates the weights: gradient descent without and with momentum, or Adam, which keeps the most
    state. Base point: presaved, sgd.
    """


@along("ranks")
class Ranks(EndToEnd):
    """Processes that train together, by averaging their gradients: each has its part of the records and of the
    CPUs, or shares a CPU if there are more ranks. Times are those of the rank that the others
    wait for; memory is the sum. Base point:
    async-raw, which decodes every photograph in every epoch, in batches of 8 on each rank.
    """


@along("workload")
class Workload(EndToEnd):
    """Data, and the model that learns from them: photographs and a residual network, digits in MNIST's files
    and LeNet, a table (a CSV file) and a perceptron, sequences of different lengths (CSV files) and an LSTM. An epoch
    of each has its own length. Base point: photographs.
    """


@along("buffers")
class Buffers(EndToEnd):
    """The memory of a batch: that of an earlier one, which training has dropped (reused), or newly allocated for every
    batch (new), as without workspaces. Base point: reused.
    """


@along("page_cache")
class PageCache(EndToEnd):
    """The files that an epoch reads: in memory (warm), or dropped from it before every epoch (cold), so that they are
    read from the disk, or from the cache of the machine that runs a virtual one. Base point: warm.
    """


if PROFILE.grid:

    @explained
    class Grid(EndToEnd):
        """Every combination of strategy, backend and dtype."""

        params = [list(values_in(PROFILE, axis)) for axis in GRID_AXES]
        param_names = list(GRID_AXES)

        def cell(self, *values: Any) -> Cell:
            """Return the cell at these values of the axes."""
            return Cell(**dict(zip(self.param_names, values, strict=True)))


class Presaving(AxisSuite):
    """The one-time cost of the presaved strategies: writing a store. A subclass chooses the axis."""

    page_note = f"{PROFILE.samples} photographs, resized to {PROFILE.image_size} x {PROFILE.image_size}. {SMALLER}"
    setup_cache = EndToEnd.setup_cache

    def setup(self, cache: Measured, value: str) -> None:
        cell = self.cell(value)
        if cell.store not in cache.data.write_seconds and cell.store not in cache.data.failures:
            reason = unsupported_reason(cell) or f"profile {PROFILE.name!r} does not read this store"
            raise NotImplementedError(reason)  # asv's n/a

    @attributes(unit="seconds")
    def track_write_time(self, cache: Measured, value: str) -> dict[str, Any]:
        """Seconds to make and write a store, with two jobs."""
        # As samples, so that asv pools those of several passes and knows their spread when it compares.
        return as_samples([self._cost(cache.data.write_seconds, cache, value)])

    @attributes(unit="bytes")
    def track_store_size(self, cache: Measured, value: str) -> int:
        """Bytes of a store's files."""
        return int(self._cost(cache.data.store_nbytes, cache, value))

    def _cost(self, costs: Mapping[str, float], cache: Measured, value: str) -> float:
        store = self.cell(value).store
        if store in cache.data.failures:
            raise RuntimeError(cache.data.failures[store])
        return costs[store]


@explained
class PresavingByFormat(Presaving):
    """The one-time cost of the presaved strategies: all photographs are decoded, resized and written, in each
    format. Base point: npy.
    """

    # Every profile measures the base point.
    params = [list(values_in(PROFILE, "presave_format"))]
    param_names = ["presave_format"]


@along("presave_stage")
class PresavingByStage(Presaving):
    """The one-time cost of the presaved strategies: all photographs are read, and written in format npy after each
    stage of the pipeline: read, decode, resize, normalise. Base point: resize.
    """


# asv cannot show a suite without values.
if PROFILE.functions:

    @explained
    class Preparing(Suite):
        """The one-time cost of user loaders: what `prepare` takes, once, and the files that it writes."""

        page_note = f"{PROFILE.samples} photographs. {SMALLER}"
        setup_cache = EndToEnd.setup_cache
        params = [list(PROFILE.functions)]
        param_names = ["strategy"]

        def setup(self, cache: Measured, strategy: str) -> None:
            if strategy not in cache.data.loaders:
                raise NotImplementedError(_reason_not_measured(cache, cell_at("strategy", strategy)))  # asv's n/a
            failure = cache.data.loaders[strategy].failure
            if failure:
                raise RuntimeError(failure)

        @attributes(unit="seconds")
        def track_prepare_time(self, cache: Measured, strategy: str) -> dict[str, Any]:
            """Seconds to prepare the loader's data; 0 if it has no `prepare`."""
            return as_samples([cache.data.loaders[strategy].prepare_seconds])

        @attributes(unit="bytes")
        def track_prepared_size(self, cache: Measured, strategy: str) -> int:
            """Bytes of the files that were prepared."""
            return int(cache.data.loaders[strategy].nbytes)


def _reason_not_measured(cache: Measured, cell: Cell) -> str:
    return str(cache.missing.get(cell, f"profile {PROFILE.name!r} does not measure this cell"))
