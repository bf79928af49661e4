"""What a comparison is asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import presave
from etl.arguments import whole_number
from etl.comparison.candidate import Candidate
from etl.runtime import GcPolicy, HeapPolicy
from etl.stages import DECODERS
from etl.stages.dtypes import find_dtype
from etl.strategies import default_names, names

CACHES = ("warm", "cold")
BACKENDS = ("auto", "cpu", "cuda")
TRAINING = "training"
DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|min)?")
SIMULATED = re.compile(r"simulated:(?P<duration>[^,]+)(?P<sync>,sync)?")
UNIT_SECONDS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0}


@dataclass(frozen=True)
class Settings:
    """What is compared, with what, and for how long; JSON values only.

    `compute` is "training" or "simulated:DURATION", a device that takes so long for each batch and leaves the CPU free.
    Steps run with at most one in flight, as in a loop that reads its loss every few steps. `sync_every_step`, or
    "simulated:DURATION,sync", is the loop that waits for each.
    `until` is the stage after which the presaved strategies are cut, None the usual one. `records` to measure, None as
    many as there is time for. `threads` is how many CPUs every strategy has for loading and compute together, None all.
    `rounds` replaces `budget_seconds`. `memory_nbytes` is the most that a strategy may take, None what the machine has
    free. `heap` and `gc` are the `HeapPolicy` and the `GcPolicy` of every strategy: without "retain" how fast a process
    computes depends on where its heap happens to end. `unchecked` are the rules of fairness that are not checked.
    Raises `ValueError` that says which setting is wrong, and what there is.
    """

    source: str
    strategies: tuple[str, ...] = field(default_factory=default_names)
    formats: tuple[str, ...] = ("npy",)
    until: str | None = None
    batch_size: int = 32
    dtype: str = "float32"
    backend: str = "auto"
    model: str | None = None
    compute: str = TRAINING
    sync_every_step: bool = False
    cache: str = "warm"
    threads: int | None = None
    rounds: int | None = None
    budget_seconds: float = 60.0
    records: int | None = None
    prefetch_size: int = 2
    heap: str = "retain"
    gc: str = "default"
    memory_nbytes: int | None = None
    size: int = 224
    decoder: str = "pillow"
    split: str | None = None
    table_options: Mapping[str, Any] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _check_strategies(self.strategies)
        _check_names("--formats", self.formats, presave.formats())
        _check_names("--decoder", (self.decoder,), tuple(DECODERS))
        _check_names("--cache", (self.cache,), CACHES)
        _check_names("--backend", (self.backend,), BACKENDS)
        HeapPolicy(self.heap)
        GcPolicy(self.gc)
        find_dtype(self.dtype)
        for name in ("batch_size", "threads", "rounds", "records", "size"):
            value = getattr(self, name)
            if value is not None:
                whole_number(f"--{name.replace('_', '-')}", value, least=1)
        whole_number("--prefetch-size", self.prefetch_size, least=0)
        if self.memory_nbytes is not None:
            whole_number("--memory", self.memory_nbytes, least=1)
        if not (self.budget_seconds > 0 and math.isfinite(self.budget_seconds)):
            raise ValueError(f"--budget must be a time above 0, such as 60s, not {self.budget_seconds}")
        if self.simulated_seconds is not None and (self.model is not None or self.backend != "auto"):
            raise ValueError(
                f"--compute {self.compute} trains nothing, so --model and --backend have no effect with it"
            )

    @property
    def simulated_seconds(self) -> float | None:
        """Seconds of simulated compute a batch; None where a model is trained."""
        if self.compute == TRAINING:
            return None
        match = SIMULATED.fullmatch(self.compute)
        if match is None:
            raise ValueError(
                f"--compute must be {TRAINING}, simulated:20ms or simulated:20ms,sync, not {self.compute!r}"
            )
        return parse_seconds(match["duration"], "--compute simulated")

    @property
    def waits_for_steps(self) -> bool:
        """True if the training loop waits for the device after every step."""
        match = SIMULATED.fullmatch(self.compute)
        return self.sync_every_step or (match is not None and match["sync"] is not None)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The settings that `as_dict` told."""
        tuples = {name: tuple(values[name]) for name in ("strategies", "formats", "unchecked")}
        return cls(**{**values, **tuples})


def parse_seconds(text: str, option: str) -> float:
    """Seconds of a time such as "60s", "20ms", "1.5min" or "60"; `ValueError` that names `option` for another text."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{option} must be a time such as 60s, 20ms or 2min, not {text!r}")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def _check_strategies(given: tuple[str, ...]) -> None:
    if not given:
        raise ValueError(f"--strategies needs at least one of {', '.join(names())}")
    for each in given:
        try:
            Candidate.named(each)
        except ValueError as error:
            raise ValueError(f"--strategies: {error}") from None
    if len({each.rpartition("=")[0] or each for each in given}) < len(given):
        raise ValueError(
            f"--strategies: {', '.join(given)} names one of them twice; another name is given as again=raw"
        )


def _check_names(option: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not names:
        raise ValueError(f"{option} needs at least one of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(f"{option}: unknown {name!r}; known: {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{option}: {', '.join(names)} names one of them twice")
