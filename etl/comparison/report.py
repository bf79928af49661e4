"""Sections of a report. What follows from other values is a property, and so cannot contradict them.

What a comparison found: every figure of it, as it is shown, and as JSON.

The fields and properties of these classes are the schema of `etl compare --json`, in version `SCHEMA_VERSION`. Seconds,
bytes and records are in their names; a ratio is a plain number, 0.25 for a quarter. What was not measured is None.

Version 4 adds `host_wait_seconds` to each strategy: the time in which the training loop waited for batches, while stall
is now the time in which the device did. The reference is always the first strategy, and a prediction always has
`error`, `at_speed_seconds` and `at_speed_error`. All other names and meanings are those of version 3.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

from etl.measuring.statistics import Interval
from etl.runtime.audit import Audit

Parent = TypeVar("Parent")


@dataclass(frozen=True)
class Section(Generic[Parent]):
    """A part of a report: fields, and properties that follow from them or from those of its `parent`.

    As JSON it has the fields and every public property of its class; what is not to be published is a method. The
    sections in its fields are copied, so that each has one parent even if it is used in several reports.
    """

    def __post_init__(self) -> None:
        """Become the parent of the sections in the fields."""
        for each in fields(self):
            object.__setattr__(self, each.name, self._adopt(getattr(self, each.name)))

    @property
    def parent(self) -> Parent:
        """The section that has this one in a field."""
        parent: Parent = vars(self)["parent"]
        return parent

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the fields, and what follows from them."""
        return {name: _as_json(getattr(self, name)) for name in self.published()}

    @classmethod
    def published(cls) -> list[str]:
        """Return the names of the fields, and those of the public properties."""
        properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
        return [each.name for each in fields(cls)] + [name for name in properties if not name.startswith("_")]

    def _adopt(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._adopt(each) for each in value]
        if isinstance(value, Section):
            value = replace(value)
            vars(value)["parent"] = self
        return value


def _as_json(value: Any) -> Any:
    if isinstance(value, Section):
        return value.as_dict()
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


SCHEMA_VERSION = 4
# Shares of all CPU time above which a report warns, and the spread of a fixed calculation.
STEAL_LIMIT, OTHER_PROCESSES_LIMIT, SPEED_LIMIT = 0.02, 0.05, 1.15


@dataclass(frozen=True)
class Parts(Section["StrategyResult"]):
    """Where the wall time of an epoch goes, in seconds: the first is the sum of the others.

    `compute_alone` is what the training steps take on a batch that is in memory, with nothing else at work;
    `interference` what they take longer in the epoch; `stall` the time in which the device waited for a batch until it
    was readable at memory speed; `harness` the clock's own loop, as calibrated without loading.
    """

    wall_seconds: float
    compute_alone_seconds: float
    interference_seconds: float
    stall_seconds: float
    harness_seconds: float

    @property
    def unexplained_seconds(self) -> float:
        """What is left."""
        known = self.compute_alone_seconds + self.interference_seconds + self.stall_seconds + self.harness_seconds
        return self.wall_seconds - known


@dataclass(frozen=True)
class RoundFigures:
    """One measurement: of the records that were measured, not scaled to the whole epoch.

    Rounds count from 0. `steal` and `other_processes` are shares of all CPUs' time.
    """

    round: int
    wall_seconds: float
    compute_seconds: float
    stall_seconds: float
    compute_alone_seconds: float
    etl_alone_seconds: float | None
    cpu_seconds: float
    steal: float
    other_processes: float
    speed_probe_seconds: float


@dataclass(frozen=True)
class Presaving(Section["StrategyResult"]):
    """What a store costs before its first epoch, for the whole source."""

    write_seconds: float
    nbytes: int

    @property
    def break_even_epochs(self) -> float | None:
        """Epochs after which the time to write has come back; None if it never does."""
        return self.parent.parent.break_even_epochs(self.write_seconds, self.parent.parts.wall_seconds)


@dataclass(frozen=True)
class Prediction(Section["StrategyResult"]):
    """The wall time of an epoch as foretold from the profile alone.

    The speed of a machine changes: `at_speed_seconds` is the same with compute alone as it was during the rounds,
    measured beside all strategies.
    """

    wall_seconds: float
    at_speed_seconds: float

    @property
    def error(self) -> float:
        """The share of the measured wall time by which it was wrong: 0.05 is 5% too long."""
        return self.wall_seconds / self.parent.parts.wall_seconds - 1

    @property
    def at_speed_error(self) -> float:
        """The same for `at_speed_seconds`."""
        return self.at_speed_seconds / self.parent.parts.wall_seconds - 1


@dataclass(frozen=True)
class SplitTrial(Section["StrategyResult"]):
    """One way to split the CPUs between compute and loading, which share them if both together have more threads than
    there are CPUs. `epoch_seconds` is the median of `trials` short ones, without the first batch, for the whole source;
    no such trial is among the rounds.
    """

    compute_threads: int
    loading_threads: int
    trials: int
    epoch_seconds: float

    @property
    def is_taken(self) -> bool:
        """True for the split that the rounds measured."""
        taken = (self.parent.compute_threads, self.parent.loading_threads)
        return (self.compute_threads, self.loading_threads) == taken


@dataclass(frozen=True)
class StrategyResult(Section["Report"]):
    """One strategy. Seconds and bytes are those of one epoch over the whole source.

    `host_wait_seconds` is the time in which the training loop waited for batches; without a device it is the stall.
    `ratio` is the wall time over the reference's, paired within rounds. `splits` are the ways to split the CPUs that
    were tried, empty if there is only one. `runtime` are the settings of its process: requested, in force, and to what
    effect.
    """

    name: str
    strategy: str
    format: str | None
    stage: str | None
    compute_threads: int
    loading_threads: int
    parts: Parts
    host_wait_seconds: float
    first_batch_seconds: float
    etl_alone_seconds: float
    cpu_seconds_per_1000: float
    peak_memory_nbytes: int
    read_nbytes: int
    ratio: Interval | None
    presaving: Presaving | None
    prediction: Prediction | None
    rounds: list[RoundFigures]
    runtime: list[Audit]
    splits: list[SplitTrial] = field(default_factory=list)

    @property
    def samples_per_second(self) -> float:
        """Records that are trained on in a second of wall time."""
        return self.parent.source_records / self.parts.wall_seconds

    @property
    def overlap(self) -> float:
        """The longer of ETL alone and compute alone, over wall."""
        return max(self.etl_alone_seconds, self.parts.compute_alone_seconds) / self.parts.wall_seconds

    @property
    def disqualified(self) -> list[str]:
        """The rules that it broke, each with what was seen."""
        broken = [check for check in self.parent.checks if self.name in check.broken_by]
        return [f"{check.rule}: {check.broken_by[self.name]}" for check in broken]

    @property
    def verdict(self) -> str:
        """One of disqualified, reference, too few rounds, no difference shown, faster and slower."""
        if self.disqualified:
            return "disqualified"
        if self.name == self.parent.reference:
            return "reference"
        if self.ratio is None or self.ratio.low is None:
            return "too few rounds"
        if not self.ratio.excludes_one:
            return "no difference shown"
        return "faster" if self.ratio.estimate < 1 else "slower"


@dataclass(frozen=True)
class StageResult(Section["Report"]):
    """Presaving after one stage: `stage` "raw" is no store at all, "read" the encoded records in a store.

    Loading alone with the strategy `strategy`, of the whole source. The wall time of an epoch and its `ratio` were
    measured for the stages that are compared as strategies; otherwise `wall_is_estimated`, from the time to load that
    was measured, and compute.
    """

    stage: str
    strategy: str
    format: str | None
    write_seconds: float
    nbytes: int
    etl_alone_seconds: float
    wall_seconds: float
    wall_is_estimated: bool
    ratio: Interval | None
    disqualified: list[str] = field(default_factory=list)

    @property
    def etl_samples_per_second(self) -> float:
        """Records loaded in a second, with nothing else at work."""
        return self.parent.source_records / self.etl_alone_seconds

    @property
    def break_even_epochs(self) -> float | None:
        """Epochs after which the time to write has come back; None if it never does, and without a store."""
        if self.stage == "raw":
            return None
        return self.parent.break_even_epochs(self.write_seconds, self.wall_seconds)


@dataclass(frozen=True)
class StageProfile:
    """One stage of the raw pipeline in one thread: seconds of a record, and bytes of its features when it is done."""

    name: str
    seconds_per_record: float
    nbytes_per_record: float


@dataclass(frozen=True)
class SplitProfile:
    """How fast so many threads load raw records with nothing else at work; and how loading and compute slow each other
    down when both are at work with so many threads (1.0: not at all).
    """

    compute_threads: int
    loading_threads: int
    records_per_second: float
    compute_slowdown: float
    loading_slowdown: float


@dataclass(frozen=True)
class ProfileResult:
    """What was measured before any strategy: the stages one by one, compute alone (by number of threads, as text), and
    both at once for each split of the CPUs.
    """

    stages: list[StageProfile]
    compute_seconds_per_batch: dict[str, float]
    splits: list[SplitProfile]
    copy_bytes_per_second: float


@dataclass(frozen=True)
class Check:
    """One rule of fairness: whether it held (None: it was not checked, with `--no-check`), and what was seen."""

    rule: str
    title: str
    held: bool | None
    evidence: str
    broken_by: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Noise(Section["Report"]):
    """What else the machine did while epochs were timed: shares of all CPU time, medians and the highest of all rounds.

    `frequency_mhz` are the lowest and the highest clock of a CPU, empty if the system does not tell them.
    """

    frequency_mhz: list[float]

    @property
    def steal_median(self) -> float:
        """Taken by the hypervisor."""
        return statistics.median(self._all("steal"))

    @property
    def steal_highest(self) -> float:
        """Taken by the hypervisor, in the worst round."""
        return max(self._all("steal"))

    @property
    def other_processes_median(self) -> float:
        """Taken by other processes."""
        return statistics.median(self._all("other_processes"))

    @property
    def other_processes_highest(self) -> float:
        """Taken by other processes, in the worst round."""
        return max(self._all("other_processes"))

    @property
    def speed_spread(self) -> float:
        """The highest over the lowest time of one fixed calculation, repeated before each measurement."""
        probes = self._all("speed_probe_seconds")
        return max(probes) / min(probes)

    @property
    def warnings(self) -> list[str]:
        """A sentence for each of them that was too high."""
        found = []
        if self.steal_highest > STEAL_LIMIT:
            found.append(
                f"The hypervisor took up to {self.steal_highest:.0%} of the CPU time (median {self.steal_median:.1%}): "
                "other virtual machines were at work."
            )
        if self.other_processes_highest > OTHER_PROCESSES_LIMIT:
            found.append(
                f"Other processes had up to {self.other_processes_highest:.0%} of the CPU time (median "
                f"{self.other_processes_median:.1%}): end them and compare again."
            )
        if self.speed_spread > SPEED_LIMIT:
            found.append(
                f"The speed of the CPU changed by a factor of {self.speed_spread:.2f} during the comparison; ratios "
                "are paired within rounds, times are not."
            )
        return found

    def _all(self, name: str) -> list[float]:
        return [getattr(figures, name) for result in self.parent.strategies for figures in result.rounds]


@dataclass(frozen=True)
class Timeline:
    """A stretch of one epoch, in seconds from its first request.

    `waits` are spans of `[start, end]` in which nothing was computed for want of a batch, `computes` those in which it
    was: one for each batch from the epoch's first on. `loads` are spans of `[thread, start, end, batch]` in which
    threads loaded, empty for worker processes. `strategy` is the name of its `StrategyResult`.
    """

    strategy: str
    waits: list[tuple[float, float]]
    computes: list[tuple[float, float]]
    loads: list[tuple[int, float, float, int]]


@dataclass(frozen=True)
class Report(Section[None]):
    """All of it. `stopped_early` tells that it was interrupted.

    `settings` is what was asked for, with all defaults filled in, `command` the command line. Figures of an epoch are
    of `source_records` records; measured were `measured_records` of them, in batches of `batch_size`. There is at least
    one strategy.
    """

    schema_version: int
    title: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    started_at: str
    seconds: float
    source_records: int
    measured_records: int
    batch_size: int
    stopped_early: bool
    recommendation: list[str]
    notes: list[str]
    strategies: list[StrategyResult]
    stages: list[StageResult]
    profile: ProfileResult
    checks: list[Check]
    noise: Noise
    timelines: list[Timeline]
    command: str | None = None

    @property
    def reference(self) -> str:
        """The name of the strategy that the others are compared with, the first."""
        return self.strategies[0].name

    @property
    def rounds(self) -> int:
        """How many there were: the reference is measured in each."""
        return len(self.strategies[0].rounds)

    @property
    def unchecked(self) -> list[str]:
        """The rules that were switched off."""
        return [check.rule for check in self.checks if check.held is None]

    def break_even_epochs(self, write_seconds: float, wall_seconds: float) -> float | None:
        """Return the epochs of `wall_seconds` after which a store has paid for the time to write it.

        It is compared with the fastest strategy that needs no store and broke no rule; None if it saves nothing against
        that, or there is no such strategy.
        """
        without = [each.parts.wall_seconds for each in self.strategies if each.stage is None and not each.disqualified]
        if not without or wall_seconds >= min(without):
            return None
        return write_seconds / (min(without) - wall_seconds)

    def shows_host_wait(self) -> bool:
        """Return whether the host wait of a strategy differs from its stall by more than 1% of its wall time."""
        return any(
            abs(each.host_wait_seconds - each.parts.stall_seconds) > 0.01 * each.parts.wall_seconds
            for each in self.strategies
        )
