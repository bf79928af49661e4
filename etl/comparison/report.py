"""What a comparison found: every figure of it, as it is shown, and as JSON.

The fields of these classes are the schema of `etl compare --json`, in version `SCHEMA_VERSION`. Seconds, bytes and
records are in their names; a ratio is a plain number, 0.25 for a quarter. What was not measured is None.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from etl.measuring.statistics import Interval
from etl.runtime.audit import Audit

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Parts:
    """Where the wall time of an epoch goes, in seconds: the first is the sum of the others.

    `compute_alone` is what the training steps take on a batch that is in memory, with nothing else at work;
    `interference` what they take longer in the epoch; `stall` the waits for a batch until it is readable at memory
    speed; `harness` the clock's own loop, as calibrated without loading; `unexplained` what is left.
    """

    wall_seconds: float
    compute_alone_seconds: float
    interference_seconds: float
    stall_seconds: float
    harness_seconds: float
    unexplained_seconds: float


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
class Presaving:
    """What a store costs before its first epoch. All for the whole source; `break_even_epochs` is None where it never
    pays off.
    """

    write_seconds: float
    nbytes: int
    break_even_epochs: float | None


@dataclass(frozen=True)
class Prediction:
    """The wall time of an epoch as foretold from the profile alone, and by how much of the measured one it was wrong:
    0.05 is 5% too long. The speed of a machine changes: `at_speed_seconds` and `at_speed_error` are the same with
    compute alone as it was during the rounds, measured beside all strategies.
    """

    wall_seconds: float
    error: float | None
    at_speed_seconds: float | None
    at_speed_error: float | None


@dataclass(frozen=True)
class SplitTrial:
    """One way to split the CPUs between compute and loading, which share them if both together have more threads than
    there are CPUs. `epoch_seconds` is the median of `trials` short ones, without the first batch, for the whole source;
    no such trial is among the rounds. `is_taken` is true for the split that the rounds measured.
    """

    compute_threads: int
    loading_threads: int
    trials: int
    epoch_seconds: float
    is_taken: bool


@dataclass(frozen=True)
class StrategyResult:
    """One strategy. Seconds and bytes are those of one epoch over the whole source.

    `ratio` is its wall time over the reference's, paired within rounds; `verdict` is "reference", "faster", "slower",
    "no difference shown", "too few rounds" or "disqualified", with the reasons in `disqualified`. `overlap` is
    max(ETL alone, compute alone) / wall. `splits` are the ways to split the CPUs that were tried, empty if there is
    only one. `runtime` are the settings of its process: requested, in force, and to what
    effect.
    """

    name: str
    strategy: str
    format: str | None
    stage: str | None
    compute_threads: int
    loading_threads: int
    parts: Parts
    first_batch_seconds: float
    samples_per_second: float
    etl_alone_seconds: float
    overlap: float
    cpu_seconds_per_1000: float
    peak_memory_nbytes: int
    read_nbytes: int
    ratio: Interval | None
    verdict: str
    presaving: Presaving | None
    prediction: Prediction | None
    rounds: list[RoundFigures]
    runtime: list[Audit]
    splits: list[SplitTrial] = field(default_factory=list)
    disqualified: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StageResult:
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
    etl_samples_per_second: float
    wall_seconds: float
    wall_is_estimated: bool
    ratio: Interval | None
    break_even_epochs: float | None
    disqualified: list[str] = field(default_factory=list)


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
class Noise:
    """What else the machine did while epochs were timed: shares of all CPU time, medians and the highest of all.

    `speed_spread` is the highest over the lowest time of one fixed calculation, repeated before each measurement.
    """

    steal_median: float
    steal_highest: float
    other_processes_median: float
    other_processes_highest: float
    speed_spread: float
    frequency_mhz: list[float]
    warnings: list[str]


@dataclass(frozen=True)
class Timeline:
    """A stretch of one epoch, in seconds from its first request: spans of `[start, end]` in which the training loop
    waited and computed, one for each batch from the epoch's first on; and of `[thread, start, end, batch]` in which
    threads loaded (empty for worker processes). `strategy` is the name of its `StrategyResult`.
    """

    strategy: str
    waits: list[tuple[float, float]]
    computes: list[tuple[float, float]]
    loads: list[tuple[int, float, float, int]]


@dataclass(frozen=True)
class Report:
    """All of it. `unchecked` are the rules that were switched off; `stopped_early` tells that it was interrupted.

    `settings` is what was asked for, with all defaults filled in, `command` the command line. Figures of an epoch are
    of `source_records` records; measured were `measured_records` of them, in batches of `batch_size`.
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
    reference: str
    rounds: int
    stopped_early: bool
    unchecked: list[str]
    recommendation: list[str]
    notes: list[str]
    strategies: list[StrategyResult]
    stages: list[StageResult]
    profile: ProfileResult
    checks: list[Check]
    noise: Noise
    timelines: list[Timeline]
    command: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def strategy(self, name: str) -> StrategyResult:
        """The result called `name`."""
        return next(each for each in self.strategies if each.name == name)
