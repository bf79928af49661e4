"""The axes: what varies, over which values, and from which base point."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cell import STRATEGIES, WORKERS, Cell
from benchmarks.profile import Profile
from benchmarks.stores import FORMATS, STAGES

# Looked up without importing torch, which asv's own processes do not need. A driver without a usable device shows as a
# failed cell, not as a silent n/a.
BACKENDS = ("cpu", "cuda") if Path("/proc/driver/nvidia/version").exists() else ("cpu",)
# Presaved batches are there before they can be waited for, so what loads ahead shows where every batch is decoded. In
# small batches, of which an epoch of profile "quick" has 16, twice as many as are ever loaded ahead.
DECODING = Cell(strategy="async-raw", batch_size=8)


BASE = Cell()


@dataclass(frozen=True)
class Axis:
    """The values of one field of `Cell`, all others being those of `base`. Those that mean something for every strategy
    are crossed `in_grid`; with the others the grid would measure most cells several times over.
    """

    values: tuple[str | int, ...]
    base: Cell = BASE
    in_grid: bool = True


# By field of `Cell`.
AXES = {
    "strategy": Axis(tuple(STRATEGIES)),
    "batch_size": Axis((1, 32, 128)),
    "dtype": Axis(("float32", "float16", "bfloat16", "float64")),
    "backend": Axis(BACKENDS),
    "garbage_collection": Axis(("default", "off", "freeze")),
    "heap": Axis(("default", "retain")),
    "prefetch_size": Axis((0, 1, 2, 4, 8), DECODING, in_grid=False),
    "workers": Axis(tuple(WORKERS), DECODING, in_grid=False),
    "presave_format": Axis(tuple(FORMATS), in_grid=False),
    "presave_stage": Axis(STAGES, in_grid=False),
}
GRID_AXES = tuple(name for name, axis in AXES.items() if axis.in_grid)


def cell_at(axis: str, value: str | int) -> Cell:
    """The base point of `axis`, moved along it to `value`."""
    return replace(AXES[axis].base, **{axis: value})  # type: ignore[arg-type]


def cells_to_measure(profile: Profile) -> list[Cell]:
    """For each axis of the profile its base point and all its other values; with `grid` every combination, too."""
    cells = [cell_at(axis, value) for axis in profile.axes for value in values_in(profile, axis)]
    if profile.grid:
        crossed = [axis for axis in GRID_AXES if axis in profile.axes]
        combinations = itertools.product(*(values_in(profile, axis) for axis in crossed))
        cells += [Cell(**dict(zip(crossed, values, strict=True))) for values in combinations]  # type: ignore[arg-type]
    return list(dict.fromkeys(cells))


def values_in(profile: Profile, axis: str) -> tuple[str | int, ...]:
    """The values of `axis` that the profile measures: all but of the strategies, of which it chooses."""
    return profile.strategies if axis == "strategy" else AXES[axis].values
