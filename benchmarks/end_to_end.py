"""End to end: the wall time of an epoch of training, ETL and compute together, along every axis.

All cells are measured once in `setup_cache`; the suites only hand the figures out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.axes import AXES, BACKENDS, GRID_AXES, cell_at, cells_to_measure, values_in
from benchmarks.cell import Cell
from benchmarks.measure import Figures
from benchmarks.page_text import explained
from benchmarks.profile import chosen_profile
from benchmarks.rounds import measure_cells
from benchmarks.workload import make_data, why_not_here

PROFILE = chosen_profile()
SMALLER = "Smaller is better."
MEASURING_TIMEOUT_SECONDS = 6 * 3600


class EndToEnd(ABC):
    """One figure of one epoch for each benchmark, a sample from every round. A subclass says which cell it is of."""

    timeout = 60
    version = PROFILE.version
    page_note = (
        f"One epoch trains a small residual network on {PROFILE.samples} photographs at {PROFILE.image_size} x "
        f"{PROFILE.image_size}: batches of 32, float32, on the CPU, unless it says otherwise. All have the same CPUs: "
        "plain strategies compute with all of them; async strategies give one of them to the thread that loads, if "
        "there are two. All that differ in nothing else were seen to train on the same bytes. The "
        f"median of several fresh processes. {SMALLER}"
    )

    def setup_cache(self) -> dict[str, Any]:
        missing: dict[Cell, str] = {}
        cells = []
        for cell in cells_to_measure(PROFILE):
            reason = why_not_here(cell)
            if reason:
                missing[cell] = reason
            else:
                cells.append(cell)
        data = make_data(PROFILE, Path.cwd(), cells)
        return {"data": data, "results": measure_cells(cells, data, PROFILE), "missing": missing}

    setup_cache.timeout = MEASURING_TIMEOUT_SECONDS  # type: ignore[attr-defined]

    def setup(self, cache: dict[str, Any], *values: Any) -> None:
        cell = self.cell(*values)
        if cell not in cache["results"]:
            reason = cache["missing"].get(cell, f"profile {PROFILE.name!r} does not measure this cell")
            raise NotImplementedError(reason)  # asv's n/a

    @property
    @abstractmethod
    def param_names(self) -> list[str]:
        """The axes of a suite, fields of `Cell`."""

    def cell(self, *values: Any) -> Cell:
        """The cell at this value of the suite's axis."""
        (axis,), (value,) = self.param_names, values
        return cell_at(axis, value)

    def track_wall(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds of one epoch: loading and training, everything included."""
        return _samples(cache, self.cell(*values), lambda figures: figures.epoch.wall.total)

    def track_etl(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds to load one epoch when nothing else is done."""
        return _samples(cache, self.cell(*values), lambda figures: figures.etl)

    def track_compute(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds of one epoch spent in training steps."""
        return _samples(cache, self.cell(*values), lambda figures: figures.epoch.compute.total)

    def track_stall(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds of one epoch in which nothing was computed, since the next batch was not there."""
        return _samples(cache, self.cell(*values), lambda figures: figures.epoch.stall.total)

    def track_peak_memory(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Bytes of memory at the peak, of the process and its children."""
        return _samples(cache, self.cell(*values), lambda figures: figures.peak_memory)

    for _figure in (track_wall, track_etl, track_compute, track_stall):
        _figure.unit = "seconds"  # type: ignore[attr-defined]
    track_peak_memory.unit = "bytes"  # type: ignore[attr-defined]


@explained
class Strategy(EndToEnd):
    """The ways to load, side by side: raw decodes every photograph in every epoch, presaved reads arrays from a store
    that was written once, each plain or (async) in the background, by one thread more. Base point: presaved.
    """

    params = [list(values_in(PROFILE, "strategy"))]
    param_names = ["strategy"]


@explained
class BatchSize(EndToEnd):
    """Records in a batch. Base point: presaved, batches of 32."""

    params = [list(AXES["batch_size"].values)]
    param_names = ["batch_size"]


@explained
class Dtype(EndToEnd):
    """The type of features and weights. Base point: presaved, float32."""

    params = [list(AXES["dtype"].values)]
    param_names = ["dtype"]


@explained
class GarbageCollection(EndToEnd):
    """CPython's garbage collector: as it is, switched off, or with all objects of the start-up frozen. Base point:
    presaved, default.
    """

    params = [list(AXES["garbage_collection"].values)]
    param_names = ["garbage_collection"]


@explained
class Heap(EndToEnd):
    """glibc's allocator: as it is, or keeping the pages of freed batches. Base point: presaved, default."""

    params = [list(AXES["heap"].values)]
    param_names = ["heap"]


@explained
class PrefetchSize(EndToEnd):
    """Batches that are loaded ahead of training; 0 is not at all. Base point: async-raw, which decodes every photograph
    in every epoch, in batches of 8, two ahead. Small batches, so that an epoch has more of them than are loaded ahead.
    """

    params = [list(AXES["prefetch_size"].values)]
    param_names = ["prefetch_size"]


@explained
class Workers(EndToEnd):
    """Threads or worker processes that load, and how many of them. Base point: async-raw, which decodes every
    photograph in every epoch, in batches of 8, two ahead, by one thread. Starting the processes is not in an epoch.
    """

    params = [list(AXES["workers"].values)]
    param_names = ["workers"]


@explained
class PresaveFormat(EndToEnd):
    """The format of the store that is read. Base point: presaved, npy, cut after the stage resize."""

    params = [list(AXES["presave_format"].values)]
    param_names = ["presave_format"]


@explained
class PresaveStage(EndToEnd):
    """The last stage of the pipeline that is done before the store is written; each epoch does the rest. In the order
    of the pipeline: the files' own bytes (read), pixels of every size (decode), pixels of one size (resize), float32
    that is ready for training (normalise). Base point: presaved, npy, resize.
    """

    params = [list(AXES["presave_stage"].values)]
    param_names = ["presave_stage"]


# A suite in which every value is n/a would be a blank chart, so these two exist only where they can be measured.
if len(BACKENDS) > 1:

    @explained
    class Backend(EndToEnd):
        """Where compute runs, on a device with at most one step in flight. Base point: presaved, cpu."""

        params = [list(AXES["backend"].values)]
        param_names = ["backend"]

        def track_host_wait(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
            """Seconds of one epoch in which the training loop waited for batches, while the device computed or not."""
            return _samples(cache, self.cell(*values), lambda figures: figures.epoch.host_wait.total)

        track_host_wait.unit = "seconds"  # type: ignore[attr-defined]


if PROFILE.grid:

    @explained
    class Grid(EndToEnd):
        """Every combination of the axes that mean something for every strategy."""

        params = [list(values_in(PROFILE, axis)) for axis in GRID_AXES]
        param_names = list(GRID_AXES)

        def cell(self, *values: Any) -> Cell:
            """The cell at these values of the axes."""
            return Cell(**dict(zip(self.param_names, values, strict=True)))


class Presaving(ABC):
    """What has to be paid once before the presaved strategies can be used. A subclass says along which axis."""

    timeout = 60
    version = PROFILE.version
    page_note = f"{PROFILE.samples} photographs, resized to {PROFILE.image_size} x {PROFILE.image_size}. {SMALLER}"
    setup_cache = EndToEnd.setup_cache

    def setup(self, cache: dict[str, Any], value: str) -> None:
        cell = self.cell(value)
        if cell.store not in cache["data"].write_seconds and cell.store not in cache["data"].failures:
            reason = why_not_here(cell) or f"profile {PROFILE.name!r} does not read this store"
            raise NotImplementedError(reason)  # asv's n/a

    @property
    @abstractmethod
    def param_names(self) -> list[str]:
        """The axis of a suite."""

    def cell(self, value: str) -> Cell:
        """A cell that reads the store at this value."""
        (axis,) = self.param_names
        return cell_at(axis, value)

    def track_write_time(self, cache: dict[str, Any], value: str) -> dict[str, Any]:
        """Seconds to make and write a store, with two jobs."""
        # As samples, so that those of several passes are pooled and a comparison knows their spread.
        return {"samples": [self._cost(cache["data"].write_seconds, cache, value)], "number": 1}

    def track_store_size(self, cache: dict[str, Any], value: str) -> int:
        """Bytes of a store's files."""
        return int(self._cost(cache["data"].store_nbytes, cache, value))

    def _cost(self, costs: dict[str, float], cache: dict[str, Any], value: str) -> float:
        store = self.cell(value).store
        if store in cache["data"].failures:
            raise RuntimeError(cache["data"].failures[store])
        return costs[store]

    track_write_time.unit = "seconds"  # type: ignore[attr-defined]
    track_store_size.unit = "bytes"  # type: ignore[attr-defined]


@explained
class PresavingByFormat(Presaving):
    """What has to be paid once before the presaved strategies can be used: all photographs are decoded, resized and
    written, in each format. Base point: npy.
    """

    params = [list(AXES["presave_format"].values)]
    param_names = ["presave_format"]


@explained
class PresavingByStage(Presaving):
    """What has to be paid once before the presaved strategies can be used: all photographs are read and written in
    format npy, after each stage of the pipeline: read, decode, resize, normalise. Base point: resize.
    """

    params = [list(AXES["presave_stage"].values)]
    param_names = ["presave_stage"]


def _samples(cache: dict[str, Any], cell: Cell, figure: Callable[[Figures], float]) -> dict[str, Any]:
    # asv keeps a dictionary of this form as samples: median, interval and tests work as for its own timings. It is not
    # documented, so asv is pinned and a test reads such a result back.
    measured = cache["results"][cell]
    if isinstance(measured, str):
        raise RuntimeError(measured)
    return {"samples": [figure(each) for each in measured], "number": 1}
