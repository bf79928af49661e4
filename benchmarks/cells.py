"""Cells, which are combinations of the axes, and profiles, which say which cells are measured, and how often."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PROFILE_VARIABLE = "FAIR_ETL_PROFILE"
ROUNDS_VARIABLE = "FAIR_ETL_ROUNDS"
AXES_VARIABLE = "FAIR_ETL_AXES"
# Decides how many CPUs are measured with.
CPUS_VARIABLE = "FAIR_ETL_CPUS"
STRATEGIES_VARIABLE = "FAIR_ETL_STRATEGIES"
# Incremented when the method of a metric changes: asv then drops older results instead of comparing them with new ones.
METHOD_VERSION = 5


@dataclass(frozen=True)
class Strategy:
    """The two properties of a strategy that the cells depend on."""

    reads_store: bool
    loads_ahead: bool


@dataclass(frozen=True)
class Workers:
    """Workers that load ahead: `count` of `kind` "thread" or "process"."""

    kind: str
    count: int


# The names below are those in asv's histories.
STRATEGIES = {
    "raw": Strategy(reads_store=False, loads_ahead=False),
    "async-raw": Strategy(reads_store=False, loads_ahead=True),
    "presaved": Strategy(reads_store=True, loads_ahead=False),
    "async-presaved": Strategy(reads_store=True, loads_ahead=True),
}
WORKERS = {"thread 1": Workers("thread", 1), "thread 2": Workers("thread", 2), "process 2": Workers("process", 2)}
# The arguments of `presave.write`.
FORMATS: dict[str, dict[str, Any]] = {
    "npy": {"format": "npy"},
    "hdf5": {"format": "hdf5"},
    "hdf5 gzip": {"format": "hdf5", "options": {"compression": "gzip"}},
    "safetensors": {"format": "safetensors"},
    "torch": {"format": "torch"},
    "pickle": {"format": "pickle"},
}
# The files' own bytes, before any stage of the pipeline.
READ = "read"
STAGES = (READ, "decode", "resize", "normalise")
# After these stages records still have different sizes.
RAGGED_STAGES = (READ, "decode")
COMPUTE = ("training", "inference")
# In torch's words: SGD without and with momentum, Adam, which has the most state.
UPDATERS = ("sgd", "momentum", "adam")
PHOTOGRAPHS, DIGITS, TABLE, SEQUENCES = WORKLOADS = ("photographs", "digits", "table", "sequences")
# Whether the files that a cell reads are in memory before each epoch that is timed.
WARM, COLD = PAGE_CACHES = ("warm", "cold")
# Whether a batch may be written into the memory of an earlier one, which the training loop has dropped.
REUSED, NEW = BUFFERS = ("reused", "new")
# Looked up without importing torch, which asv's own processes do not need. A driver without a usable device shows as a
# failed cell, not as a silent n/a.
BACKENDS = ("cpu", "cuda") if Path("/proc/driver/nvidia/version").exists() else ("cpu",)


@dataclass(frozen=True)
class Cell:
    """One way to load and compute. Each field is an axis.

    The defaults are the base point: plain presaved, in which both ETL and compute are paid in full, so that whatever an
    axis changes shows in the wall time.

    Attributes
    ----------
    strategy : str
        A key of `STRATEGIES`, or the name of a user's loader.
    dtype : str
        Of features and weights.
    backend : str
        Where compute runs.
    garbage_collection, heap : str
        As `etl.runtime.GcPolicy` and `HeapPolicy` take them.
    prefetch_size, workers : int, str
        How the async strategies load ahead; `workers` is a key of `WORKERS`. The plain strategies ignore both.
    presave_format, presave_stage : str
        The store that the presaved strategies read: a key of `FORMATS`, and one of `STAGES`. The raw strategies ignore
        both.
    compute : str
        One of `COMPUTE`.
    ranks : int
        Processes that train together, each on its part of the records and of the CPUs.
    workload : str
        What is loaded, and the model that learns from it: one of `WORKLOADS`.
    updater, buffers, page_cache : str
        One of `UPDATERS`, `BUFFERS` and `PAGE_CACHES`.
    """

    strategy: str = "presaved"
    batch_size: int = 32
    dtype: str = "float32"
    backend: str = "cpu"
    garbage_collection: str = "default"
    heap: str = "default"
    prefetch_size: int = 2
    workers: str = "thread 1"
    presave_format: str = "npy"
    presave_stage: str = "resize"
    compute: str = "training"
    ranks: int = 1
    workload: str = PHOTOGRAPHS
    updater: str = "sgd"
    buffers: str = REUSED
    page_cache: str = WARM

    @property
    def is_foreign(self) -> bool:
        """True if a user's function loads, in ways that are unknown here."""
        return self.strategy not in STRATEGIES

    @property
    def is_async(self) -> bool:
        return not self.is_foreign and STRATEGIES[self.strategy].loads_ahead

    @property
    def is_presaved(self) -> bool:
        return not self.is_foreign and STRATEGIES[self.strategy].reads_store

    @property
    def worker_kind(self) -> str:
        """Kind of worker, "thread" or "process"."""
        return WORKERS[self.workers].kind

    @property
    def worker_count(self) -> int:
        return WORKERS[self.workers].count

    @property
    def store(self) -> str:
        """Name of the store that the presaved strategies read: its format and the last stage that is already done.

        Records of other workloads than photographs are kept as their source reads them.
        """
        if self.workload == PHOTOGRAPHS:
            return f"{self.presave_format} after {self.presave_stage}"
        return f"{self.workload} in {self.presave_format}"

    @property
    def work(self) -> tuple[Any, ...]:
        """Fields that must be equal for two cells to load the same batches and compute the same score."""
        return self.batch_size, self.dtype, self.backend, self.compute, self.ranks, self.workload, self.updater


BASE = Cell()
# Presaved batches are loaded before anything waits for them. So settings of loading ahead have an effect only if every
# batch is decoded. Batches are small: an epoch has many times as many as are ever loaded ahead.
DECODING = Cell(strategy="async-raw", batch_size=8)


@dataclass(frozen=True)
class Axis:
    """Values of one field of `Cell`, while all other fields are those of `base`.

    Attributes
    ----------
    values : tuple of str or int
        All values, the base's included.
    strategies : tuple of str
        The strategies that have every value, where the effect depends on them. Empty if only that of `base` has.
    """

    values: tuple[str | int, ...]
    base: Cell = BASE
    strategies: tuple[str, ...] = ()


# By field of `Cell`. The collector and the allocator can matter where every photograph is decoded, since that makes
# objects and frees memory all the time; a presaved batch is one copy into memory that is already there.
AXES = {
    "strategy": Axis(tuple(STRATEGIES)),
    "batch_size": Axis((1, 32, 128, 1000)),
    "dtype": Axis(("float32", "float16", "bfloat16", "float64")),
    "backend": Axis(BACKENDS),
    "garbage_collection": Axis(("default", "off", "freeze"), strategies=("raw", "async-raw")),
    "heap": Axis(("default", "retain"), strategies=("raw", "async-raw")),
    "prefetch_size": Axis((0, 1, 2, 4, 8), DECODING),
    "workers": Axis(tuple(WORKERS), DECODING),
    "presave_format": Axis(tuple(FORMATS)),
    "presave_stage": Axis(STAGES),
    "compute": Axis(COMPUTE),
    "ranks": Axis((1, 2, 4), DECODING),
    "workload": Axis(WORKLOADS, strategies=tuple(STRATEGIES)),
    "updater": Axis(UPDATERS),
    "buffers": Axis(BUFFERS, strategies=("raw", "presaved")),
    "page_cache": Axis(PAGE_CACHES, strategies=("raw", "presaved", "async-presaved")),
}
# The axes whose every combination is measured by profiles with a grid.
GRID_AXES = ("strategy", "backend", "dtype")


@dataclass(frozen=True)
class Profile:
    """An entry of `profiles.json`: how much is measured.

    Attributes
    ----------
    name : str
        Key in `profiles.json`.
    samples, image_size : int
        Photographs in an epoch, and pixels a side that they are resized to.
    rounds : int
        Processes that measure each cell. Not 6: asv calls nothing different that has 6 samples on either side, since
        the smallest p of its test is then 0.0022, above its 0.002. With less it compares confidence intervals.
    seconds_per_figure : float
        Seconds for each part of the measurement in each process.
    grid : bool
        Whether every combination of `GRID_AXES` is measured in addition to one axis at a time.
    functions : mapping of str to str
        The "package.module:function" of each user loader that is compared with the strategies, by its name.
    setting_rounds : int
        Pairs of processes in which runtime settings take turns; 0 does not measure settings.
    """

    name: str
    samples: int
    image_size: int
    rounds: int
    seconds_per_figure: float
    grid: bool
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    axes: tuple[str, ...] = tuple(AXES)
    functions: Mapping[str, str] = field(default_factory=dict)
    setting_rounds: int = 0

    @property
    def version(self) -> str:
        """Version of all benchmarks, for asv: different profiles, or numbers of CPUs, do not belong in one history."""
        cpus = os.environ.get(CPUS_VARIABLE)
        return f"{METHOD_VERSION}-{self.name}{f'-{cpus}-cpus' if cpus else ''}"


def chosen_profile() -> Profile:
    """Return the profile that FAIR_ETL_PROFILE names, "quick" by default.

    FAIR_ETL_ROUNDS replaces its numbers of rounds. FAIR_ETL_AXES, names separated by commas, replaces its axes.
    FAIR_ETL_STRATEGIES, such as "mine=my_loaders:dataloader,other=my_loaders:generator", adds user loaders.

    Raises
    ------
    ValueError
        If there is no such profile or axis, the rounds are not a number from 1, or a loader has no name of its own.
    """
    profiles = json.loads(Path(__file__).with_name("profiles.json").read_text())
    name = os.environ.get(PROFILE_VARIABLE, "quick")
    if name not in profiles:
        raise ValueError(f"{PROFILE_VARIABLE}={name!r} is not one of {', '.join(profiles)}")
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in profiles[name].items()
    }
    if (rounds := os.environ.get(ROUNDS_VARIABLE)) is not None:
        if not rounds.isdecimal() or int(rounds) < 1:
            raise ValueError(f"{ROUNDS_VARIABLE}={rounds!r}: give a number from 1")
        of_settings = {"setting_rounds"} & settings.keys()  # profiles without suites of settings have none
        settings.update(dict.fromkeys(("rounds", *of_settings), int(rounds)))
    if AXES_VARIABLE in os.environ:
        settings["axes"] = tuple(os.environ[AXES_VARIABLE].split(","))
        unknown = [axis for axis in settings["axes"] if axis not in AXES]
        if unknown:
            raise ValueError(f"{AXES_VARIABLE}: {', '.join(map(repr, unknown))} is not one of {', '.join(AXES)}")
    return Profile(name, functions=_chosen_functions(), **settings)


def _chosen_functions() -> dict[str, str]:
    functions: dict[str, str] = {}
    for given in filter(None, os.environ.get(STRATEGIES_VARIABLE, "").split(",")):
        # A name without other characters, since it is part of asv's pages and of paths.
        named = re.fullmatch(r"([\w.-]+)=([\w.]+:[\w.]+)", given.strip())
        if named is None:
            raise ValueError(f"{STRATEGIES_VARIABLE}: {given!r} is not NAME=package.module:function")
        name, function = named.groups()
        if name in STRATEGIES or name in functions:
            raise ValueError(f"{STRATEGIES_VARIABLE}: another strategy is called {name!r}, too; choose another name")
        functions[name] = function
    return functions


def cells_to_measure(profile: Profile) -> list[Cell]:
    """Return the cells at all values of the profile's axes, and with `grid` those of all combinations, each once."""
    cells = [
        cell_at(axis, value, strategy)
        for axis in profile.axes
        for strategy in AXES[axis].strategies or (None,)
        for value in values_in(profile, axis)
    ]
    if profile.grid:
        combinations = itertools.product(*(values_in(profile, axis) for axis in GRID_AXES))
        cells += [Cell(**dict(zip(GRID_AXES, values, strict=True))) for values in combinations]  # type: ignore[arg-type]
    return list(dict.fromkeys(cells))


def cell_at(axis: str, value: str | int, strategy: str | None = None) -> Cell:
    """Return the base point of an axis, moved along it.

    Parameters
    ----------
    axis : str
        Key of `AXES`.
    """
    base = AXES[axis].base if strategy is None else replace(AXES[axis].base, strategy=strategy)
    return replace(base, **{axis: value})  # type: ignore[arg-type]


def values_in(profile: Profile, axis: str) -> tuple[str | int, ...]:
    """Return the values of `axis` that the profile measures; that of the base point if the axis is not varied."""
    if axis == "strategy":
        return (*profile.strategies, *profile.functions)
    if axis not in profile.axes:
        return (getattr(AXES[axis].base, axis),)
    return AXES[axis].values
