"""End to end: the wall time of an epoch of training, ETL and compute together, along every axis.

All cells are measured once in `setup_cache`; the suites only hand the figures out.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from benchmarks.cell import BACKENDS, BATCH_SIZES, DTYPES, GARBAGE_COLLECTION, HEAPS, Cell
from benchmarks.profile import chosen_profile
from benchmarks.rounds import measure_cells
from benchmarks.workload import make_data

PROFILE = chosen_profile()
# The values of each axis; the first of all but `strategy` is the base point.
AXES: dict[str, tuple[Any, ...]] = {
    "strategy": PROFILE.strategies,
    "batch_size": BATCH_SIZES,
    "dtype": DTYPES,
    "backend": BACKENDS,
    "garbage_collection": GARBAGE_COLLECTION,
    "heap": HEAPS,
}
MEASURING_TIMEOUT_SECONDS = 6 * 3600


def cells_to_measure() -> list[Cell]:
    """The base point with one axis varied at a time; with `grid`, every combination."""
    if PROFILE.grid:
        return [Cell(*values) for values in itertools.product(*AXES.values())]
    varied = [Cell(**{axis: value}) for axis in PROFILE.axes for value in AXES[axis]]
    return list(dict.fromkeys(varied))


class EndToEnd(ABC):
    """One figure of one epoch for each benchmark, a sample from every round. A subclass says which cell it is of."""

    timeout = 60
    version = PROFILE.version

    def setup_cache(self) -> dict[str, Any]:
        data = make_data(PROFILE, Path.cwd())
        return {"data": data, "results": measure_cells(cells_to_measure(), data, PROFILE)}

    setup_cache.timeout = MEASURING_TIMEOUT_SECONDS  # type: ignore[attr-defined]

    def setup(self, cache: dict[str, Any], *values: Any) -> None:
        if self.cell(*values) not in cache["results"]:
            raise NotImplementedError(f"profile {PROFILE.name!r} does not measure this cell")  # asv's n/a

    @abstractmethod
    def cell(self, *values: Any) -> Cell:
        """The cell at these values of the suite's axes."""

    def track_wall(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds of one epoch: loading and training, everything included."""
        return _samples(cache, self.cell(*values), "wall")

    def track_etl(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds to load one epoch when nothing else is done."""
        return _samples(cache, self.cell(*values), "etl")

    def track_compute(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds of one epoch spent in training steps."""
        return _samples(cache, self.cell(*values), "compute")

    def track_stall(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Seconds of one epoch in which training waited for the next batch."""
        return _samples(cache, self.cell(*values), "stall")

    def track_peak_memory(self, cache: dict[str, Any], *values: Any) -> dict[str, Any]:
        """Bytes of memory at the peak, of the process and its children."""
        return _samples(cache, self.cell(*values), "peak_memory")

    for _figure in (track_wall, track_etl, track_compute, track_stall):
        _figure.unit = "seconds"  # type: ignore[attr-defined]
    track_peak_memory.unit = "bytes"  # type: ignore[attr-defined]


class Strategy(EndToEnd):
    """The ways to load, side by side: raw decode or presaved arrays, each plain or prefetched in the background."""

    params = [list(PROFILE.strategies)]
    param_names = ["strategy"]

    def cell(self, *values: Any) -> Cell:
        return Cell(strategy=values[0])


class BatchSize(EndToEnd):
    """Records a batch, presaved."""

    params = [list(BATCH_SIZES)]
    param_names = ["batch_size"]

    def cell(self, *values: Any) -> Cell:
        return Cell(batch_size=values[0])


class Dtype(EndToEnd):
    """The type of features and weights, presaved."""

    params = [list(DTYPES)]
    param_names = ["dtype"]

    def cell(self, *values: Any) -> Cell:
        return Cell(dtype=values[0])


class GarbageCollection(EndToEnd):
    """CPython's garbage collector: as it is, switched off, or with all objects of the start-up frozen."""

    params = [list(GARBAGE_COLLECTION)]
    param_names = ["garbage_collection"]

    def cell(self, *values: Any) -> Cell:
        return Cell(garbage_collection=values[0])


class Heap(EndToEnd):
    """glibc's allocator: as it is, or keeping the pages of freed batches."""

    params = [list(HEAPS)]
    param_names = ["heap"]

    def cell(self, *values: Any) -> Cell:
        return Cell(heap=values[0])


# A suite in which every value is n/a would be a blank chart, so these two exist only where they can be measured.
if len(BACKENDS) > 1:

    class Backend(EndToEnd):
        """Where compute runs, presaved."""

        params = [list(BACKENDS)]
        param_names = ["backend"]

        def cell(self, *values: Any) -> Cell:
            return Cell(backend=values[0])


if PROFILE.grid:

    class Grid(EndToEnd):
        """Every combination of the axes."""

        params = [list(values) for values in AXES.values()]
        param_names = list(AXES)

        def cell(self, *values: Any) -> Cell:
            return Cell(*values)


class Presaving:
    """What has to be paid once before the presaved strategies can be used: decoding all photographs into a store."""

    timeout = 60
    version = PROFILE.version
    setup_cache = EndToEnd.setup_cache

    def track_write_time(self, cache: dict[str, Any]) -> dict[str, Any]:
        """Seconds to decode, resize and write all photographs, with two jobs."""
        # As samples, so that those of several passes are pooled and a comparison knows their spread.
        return {"samples": [cache["data"].write_seconds], "number": 1}

    def track_store_size(self, cache: dict[str, Any]) -> int:
        """Bytes of the store's files."""
        nbytes: int = cache["data"].store_nbytes
        return nbytes

    track_write_time.unit = "seconds"  # type: ignore[attr-defined]
    track_store_size.unit = "bytes"  # type: ignore[attr-defined]


def _samples(cache: dict[str, Any], cell: Cell, figure: str) -> dict[str, Any]:
    # asv keeps a dictionary of this form as samples: median, interval and tests work as for its own timings. It is not
    # documented, so asv is pinned and a test reads such a result back.
    measured = cache["results"][cell]
    if isinstance(measured, str):
        raise RuntimeError(measured)
    return {"samples": [result[figure] for result in measured], "number": 1}
