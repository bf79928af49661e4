"""Settings of a comparison, and checks of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import presave
from etl.arguments import whole_number
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.conditions import Conditions
from etl.comparison.request.scenario import WhatIf
from etl.functions import is_carried
from etl.runtime import DeviceMemoryPolicy, GcPolicy, HeapPolicy
from etl.sources.named import is_source_name
from etl.stages.dtypes import find_dtype
from etl.stages.presets import PRESET_DECODERS
from etl.strategies import default_names, names
from etl.training.compute import TRAINING

CACHES = ("warm", "cold")
BACKENDS = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Settings(Conditions):
    """Settings of a comparison: its conditions, and those fields that only the command needs. All are JSON values.

    Attributes
    ----------
    source : str
        Path of the source, or "package.module:function" that returns a source or a data set.
    strategies : tuple of str
        Strategies to compare, each "STRATEGY" or "LABEL=STRATEGY"; a user's loader is "package.module:function".
        The first is the reference.
    formats : tuple of str
        Store formats. Every strategy that reads a store is compared in each of them.
    until : str or None
        Stage after which records are presaved; None for the default.
    backend : {"auto", "cpu", "cuda"}
        Device of compute.
    pipeline : str or None
        "package.module:function" that returns the pipeline; None for the default one of the source.
    model : str or None
        Built-in model or "package.module:function"; None for the default model of the records' shape.
    threads : int or None
        CPUs of every strategy, for loading and compute together; None for all.
    ranks : int
        Processes that train together, each on its part of the records and of the CPUs.
    rounds : int or None
        Number of rounds; None for as many as fit in `budget_seconds`.
    etl_alone_rounds : int
        Rounds in which loading alone is measured, too. No claim of the report is based on it.
    budget_seconds : float
        Approximate time of the whole comparison.
    records : int or None
        Records to measure; None for as many as there is time for.
    prefetch_size : int
        Batches that are loaded ahead.
    device_memory : str
        `DeviceMemoryPolicy` of every process that computes on a CUDA device.
    memory_nbytes : int or None
        Memory limit of a strategy; None for the memory that is free, within the limits of the container.
    size : int
        Side of the images in pixels.
    split : str or None
        Part of a data set that has several, such as "test".
    table_options : dict
        Options of sources that are tables.
    pythons : dict of str to str
        Interpreters of strategies that run in another environment, by name.
    configured : dict of str to dict
        Settings of single strategies, by name in reports, as `Candidate.with_settings` takes them.
    tune_seconds : float or None
        Time to find the best settings of each strategy before the comparison; None to compare them as they are.
    max_disk_nbytes, max_prepare_seconds : number or None
        Limits for tuned settings: bytes of a store and time to write it, for the whole source.
    same_pixels : bool
        Tuning keeps the decoder, since others may give other pixels.
    tuning_cache : str or None
        Folder with results of earlier tuning; None for the user's own, and "" for none.
    retune : bool
        Tune again what an earlier run has found.
    epoch_batches : int or None
        Batches of an epoch of a user's loader, for loaders that do not end; None for all of its batches.
    check_epoch : bool
        Measure whole epochs, however long they take, so that all records of loaders that cannot be given fewer are
        compared.
    source_name : str or None
        What reports call the source; None for `source`.
    search : tuple of str
        Folders in which the user's modules are found, besides the working folder.
    unchecked : tuple of str
        Rules of fairness that are not checked.
    what_if : tuple of str
        Scenarios for which every strategy is predicted, such as "cpus=8,compute=5ms,disk=200MB/s,cache=50%".
    stages : bool
        Also measure where to presave: loading from a store after each stage.

    Raises
    ------
    ValueError
        If a setting is wrong. The message names it and lists the choices.
    """

    source: str
    strategies: tuple[str, ...] = field(default_factory=default_names)
    formats: tuple[str, ...] = ("npy",)
    until: str | None = None
    backend: str = "auto"
    pipeline: str | None = None
    model: str | None = None
    threads: int | None = None
    ranks: int = 1
    rounds: int | None = None
    etl_alone_rounds: int = 1
    budget_seconds: float = 60.0
    records: int | None = None
    prefetch_size: int = 2
    device_memory: str = "default"
    memory_nbytes: int | None = None
    size: int = 224
    decoder: str = "pillow"
    split: str | None = None
    table_options: Mapping[str, Any] = field(default_factory=dict)
    pythons: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tune_seconds: float | None = None
    max_disk_nbytes: int | None = None
    max_prepare_seconds: float | None = None
    same_pixels: bool = False
    tuning_cache: str | None = None
    retune: bool = False
    epoch_batches: int | None = None
    check_epoch: bool = False
    source_name: str | None = None
    search: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    what_if: tuple[str, ...] = ()
    stages: bool = False

    def __post_init__(self) -> None:
        candidates = _parse_strategies(self.strategies)
        _check_names("--formats", self.formats, presave.formats())
        _check_names("--decoder", (self.decoder,), PRESET_DECODERS)
        _check_names("--cache", (self.cache,), CACHES)
        _check_names("--backend", (self.backend,), BACKENDS)
        HeapPolicy(self.heap)
        GcPolicy(self.gc)
        DeviceMemoryPolicy(self.device_memory)
        if self.device_memory != "default" and self.pythons:
            raise ValueError(
                f"--device-memory {self.device_memory}: strategies in another Python would not have it; leave out "
                f"--python {', '.join(self.pythons)}"
            )
        find_dtype(self.dtype)
        counts = ("batch_size", "threads", "ranks", "rounds", "etl_alone_rounds", "records", "size", "epoch_batches")
        for name in counts:
            value = getattr(self, name)
            if value is not None:
                option = "cpus" if name == "threads" else name.replace("_", "-")
                whole_number(f"--{option}", value, least=1)
        whole_number("--prefetch-size", self.prefetch_size, least=0)
        for option, limit in (("--memory", self.memory_nbytes), ("--max-disk", self.max_disk_nbytes)):
            if limit is not None:
                whole_number(option, limit, least=1)
        times = {
            "--budget": self.budget_seconds,
            "--tune-budget, or --budget of etl tune,": self.tune_seconds,
            "--max-prepare": self.max_prepare_seconds,
        }
        for option, seconds in times.items():
            if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
                raise ValueError(f"{option} must be a time above 0, such as 60s, not {seconds}")
        if self.step is not None and (self.model is not None or self.compute != TRAINING):
            raise ValueError(
                "--step replaces the model and its compute, so --model and --compute have no effect with it"
            )
        unknown = set(self.configured).difference(candidates)
        if unknown:
            raise ValueError(f"settings are given for {', '.join(sorted(unknown))}, but no strategy is called that")
        for name in self.pythons:
            candidate = candidates.get(name)
            if candidate is None:
                raise ValueError(f"--python {name}=...: no strategy is called {name}")
            if not candidate.is_foreign:
                raise ValueError(f"--python {name}=...: only your own loader runs in another Python")
            if any(is_carried(each) for each in (candidate.strategy, self.step or "")):
                raise ValueError(
                    f"--python {name}=...: functions cannot be carried to another Python; name the loader, and the "
                    "factory of the training step if there is one, as package.module:function"
                )
        if self.cache == "cold" and self.has_unknown_files:
            raise ValueError(
                f"--cache cold: which files {self.title} reads is unknown, so they cannot be dropped from the page "
                "cache; give the path of the data, or compare with --cache warm"
            )
        for scenario in self.what_if:
            WhatIf.parse(scenario).check(is_cold=self.cache == "cold")
        if self.simulated_seconds is not None and (self.model is not None or self.backend != "auto"):
            raise ValueError(f"--compute {self.compute} runs no model, so --model and --backend have no effect with it")

    @property
    def title(self) -> str:
        """Name of the source in reports."""
        return self.source_name or self.source

    @property
    def has_unknown_files(self) -> bool:
        """True if the source is not a path but a function or an object, whose files are unknown."""
        return is_source_name(self.source)

    @property
    def step_records(self) -> int:
        """Records that all ranks together take in a step."""
        return self.batch_size * self.ranks


def _parse_strategies(given: tuple[str, ...]) -> dict[str, Candidate]:
    """Return the candidates by their names in reports, which must differ."""
    if not given:
        raise ValueError(f"--strategies needs at least one of {', '.join(names())}")
    try:
        found = {each.name: each for each in map(Candidate.parse, given)}
    except ValueError as error:
        raise ValueError(f"--strategies: {error}") from None
    if len(found) < len(given):
        raise ValueError(f"--strategies: {', '.join(given)} has the same name twice; rename one, such as again=raw")
    return found


def _check_names(option: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not names:
        raise ValueError(f"{option} needs at least one of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(f"{option}: unknown {name!r}; known: {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{option}: {', '.join(names)} has the same name twice")
