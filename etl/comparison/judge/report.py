"""The report of a comparison: every metric, as it is shown and as JSON.

The fields and properties of these classes are the schema of `etl compare --json`, version `SCHEMA_VERSION`. Names
include their unit: seconds, nbytes, records. A ratio is a plain number, 0.25 for a quarter. None means not measured.
Values that are derived from others are properties, so that they cannot contradict them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etl.comparison.judge.noise import Noise
from etl.comparison.judge.rank_results import RankResult, describe_straggler
from etl.comparison.judge.sameness import Sameness
from etl.comparison.judge.section import Section
from etl.comparison.request.answers import SplitProfile, StageProfile
from etl.measuring.statistics import Interval, Outcome
from etl.runtime.audit import Audit

# Raised if a field is renamed, removed or means something else; not for a new one.
SCHEMA_VERSION = 8


@dataclass(frozen=True)
class Parts(Section["StrategyResult"]):
    """The wall time of an epoch in seconds, and the parts that add up to it: all other fields and the unexplained rest.

    Attributes
    ----------
    wall_seconds : float
        Wall time of the epoch.
    compute_alone_seconds : float
        The same number of steps on a batch in memory, with nothing else running.
    interference_seconds : float
        Time by which the steps took longer in the epoch than alone. A negative value is noise.
    stall_seconds : float
        Time in which the device waited until a batch was readable at memory speed.
    harness_seconds : float
        Overhead of the measuring loop, calibrated without loading.
    """

    wall_seconds: float
    compute_alone_seconds: float
    interference_seconds: float
    stall_seconds: float
    harness_seconds: float

    @property
    def unexplained_seconds(self) -> float:
        """Wall time minus all other parts."""
        known = self.compute_alone_seconds + self.interference_seconds + self.stall_seconds + self.harness_seconds
        return self.wall_seconds - known


@dataclass(frozen=True)
class Losses(Section["StrategyResult"]):
    """Seconds of an epoch in which the device does not compute, by cause.

    Compute alone is measured on batches in host memory, so it includes their copies to a device. They are lost, too.
    Start-up, storage, CPU and transfer add up to what is lost with the interference, harness and unexplained rest of
    `Parts`.

    Attributes
    ----------
    start_up_seconds : float
        Stall in the start-up: before the first batches, as many as may be in flight.
    storage_seconds : float or None
        Later stalls in which data were waited for, from a disk or a network: no thread that loads used a CPU, or was
        ready to. None if it is unknown.
    transfer_seconds : float or None
        Time in which steps waited for their batch's copy to the device; 0 on a CPU. None if it is unknown, since a
        user's step copies its batch itself.
    storage_method : str or None
        How storage was measured. "cpu-time" for the CPU times of threads. "psi" if several load at the same time, where
        the kernel's pressure stall information decides within the limits that CPU times leave. None if it is unknown.
    """

    start_up_seconds: float
    storage_seconds: float | None
    transfer_seconds: float | None
    storage_method: str | None

    @property
    def cpu_seconds(self) -> float | None:
        """Later stalls in which no data were waited for: decoding and the like took too long. None if unknown."""
        if self.storage_seconds is None:
            return None
        return self.parent.parts.stall_seconds - self.start_up_seconds - self.storage_seconds

    @property
    def lost_seconds(self) -> float:
        """Wall time without that of computing: wall minus compute alone, plus the transfer that this includes."""
        parts = self.parent.parts
        return parts.wall_seconds - parts.compute_alone_seconds + (self.transfer_seconds or 0.0)


@dataclass(frozen=True)
class StallTails:
    """Stalls before a batch, in seconds, over the batches of all rounds without the first of each epoch.

    Attributes
    ----------
    median, p99, largest : float
        What half of the batches, and 99% of them, did not exceed; and the largest.
    """

    median: float
    p99: float
    largest: float


@dataclass(frozen=True)
class RoundFigures:
    """Metrics of a strategy in one round, for the measured records: they are not scaled to the whole source.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    position : int
        Samples of the round that were taken before it.
    started_at : float
        When taking it began, in seconds since 1970.
    wall_seconds : float
        Wall time.
    compute_seconds, stall_seconds : float
        Parts of the wall time: steps, and waiting for batches.
    compute_alone_seconds : float
        The same number of steps with nothing else running.
    etl_alone_seconds : float or None
        Loading the same records with nothing else running; None if it was not measured in this round.
    cpu_seconds : float
        CPU time of the process and its workers.
    steal, other_processes : float
        Shares of the time of its CPUs that were taken by the hypervisor and by other processes.
    speed_probe_seconds : float
        Time of a fixed calculation, which shows changes in the speed of the CPU: the longer one of before and after.
    memory_probe_seconds : float
        The same of copying more memory than the caches hold.
    throttled : float
        Share of the periods of a CPU quota in which it was used up.
    start_up_batches : int
        Batches of the start-up, which counts once if the time is scaled to the whole source.
    """

    round: int
    position: int
    started_at: float
    wall_seconds: float
    compute_seconds: float
    stall_seconds: float
    compute_alone_seconds: float
    etl_alone_seconds: float | None
    cpu_seconds: float
    steal: float
    other_processes: float
    speed_probe_seconds: float
    memory_probe_seconds: float
    throttled: float = 0.0
    start_up_batches: int = 1


@dataclass(frozen=True)
class Presaving(Section["StrategyResult"]):
    """Cost of a store of the whole source, or of what a loader prepares, which is paid once, before the first epoch.

    Attributes
    ----------
    write_seconds : float
        Time to write the store.
    nbytes : int
        Disk space of the store.
    """

    write_seconds: float
    nbytes: int

    @property
    def break_even_epochs(self) -> float | None:
        """Epochs until the store has saved the time to write it; None if it never does, or every strategy has one."""
        return self.parent.parent.break_even_epochs(self.write_seconds, self.parent.parts.wall_seconds)


@dataclass(frozen=True)
class SplitTrial(Section["StrategyResult"]):
    """Trials of one split of the CPUs between compute and loading.

    If both together have more threads than there are CPUs, they share CPUs. Trials are not part of the rounds.

    Attributes
    ----------
    compute_threads, loading_threads : int
        The split.
    trials : int
        Number of short trials.
    epoch_seconds : float
        Time of an epoch of the whole source: the trials' median time per batch, without the first batches, times the
        number of batches.
    """

    compute_threads: int
    loading_threads: int
    trials: int
    epoch_seconds: float

    @property
    def is_taken(self) -> bool:
        """True if the rounds measured this split."""
        taken = (self.parent.compute_threads, self.parent.loading_threads)
        return (self.compute_threads, self.loading_threads) == taken


@dataclass(frozen=True)
class TuningResult:
    """The settings of a strategy that were best for it, found before the comparison.

    Attributes
    ----------
    name : str
        The strategy.
    given : dict
        Values of the settings that may be varied, as they were given.
    chosen : dict
        Settings of the best configuration that differ from these.
    advice : str
        Sentence that says what to set, and what it gains.
    configurations : int
        Configurations that were tried.
    seconds : float
        How long it took.
    is_cached : bool
        True if an earlier run found it.
    """

    name: str
    given: Mapping[str, Any]
    chosen: Mapping[str, Any]
    advice: str
    configurations: int
    seconds: float
    is_cached: bool


@dataclass(frozen=True)
class StrategyResult(Section["ReportData"]):
    """Result of one strategy. Seconds and bytes are per epoch of the whole source.

    Attributes
    ----------
    name : str
        Name in the report: the label if one was given, otherwise the strategy. If there are several store formats, the
        name includes the format.
    strategy : str
        Name of the strategy, or the user's function that loads.
    is_foreign : bool
        True if a user's function loads.
    measured_records : int
        Records of its epoch that were measured.
    sameness : Sameness or None
        How far its records are those of the reference; None for the reference.
    format, stage : str or None
        Format of its store, and the last stage before the records were stored; None without a store.
    compute_threads, loading_threads : int
        Its split of the CPUs; 0 loading threads if the training loop itself loads, or if a user's function does.
    parts : Parts
        The wall time and its parts.
    host_wait_seconds : float
        Time in which the training loop waited for batches; without a device this equals the stall.
    first_batch_seconds : float
        Stall before the first batch; part of the stall of the epoch.
    stall_tails : StallTails
        Stalls before single batches.
    losses : Losses
        What the epoch loses, by cause.
    etl_alone_seconds : float
        Loading with nothing else running.
    cpu_seconds_per_1000 : float
        CPU time per 1,000 records.
    peak_memory_nbytes : int
        Peak memory of the process and its workers, in an untimed epoch of the measured records: anonymous and shared
        memory, and resident pages of mapped data files, but not of libraries.
    read_nbytes : int
        Bytes read from files, including memory-mapped files.
    ratio : Interval or None
        Its wall time divided by that of the reference in the same round; None for the reference.
    presaving : Presaving or None
        Cost of its store, or of what its `prepare` writes; None if there is neither.
    rounds : list of RoundFigures
        Metrics of each round.
    runtime : list of Audit
        Runtime settings of its process: requested, actual, and their effect.
    splits : list of SplitTrial
        Splits of the CPUs that were tried; empty if none was tried.
    ranks : list of RankResult
        The ranks, if there are several. The wall time is then that of the slowest, and its parts are those of the
        straggler: of the rank that waits least for others, or if they do not wait for each other of the slowest.
        Waiting for others is interference. The memory is that of all ranks, in which what they share counts once.
    settings : dict
        Settings that differ from those of the comparison, by name.
    peak_device_memory_nbytes : int or None
        Most memory that torch's allocator had given out on CUDA devices in an untimed epoch; None if none was used.
    """

    name: str
    strategy: str
    is_foreign: bool
    measured_records: int
    sameness: Sameness | None
    format: str | None
    stage: str | None
    compute_threads: int
    loading_threads: int
    parts: Parts
    host_wait_seconds: float
    first_batch_seconds: float
    stall_tails: StallTails
    losses: Losses
    etl_alone_seconds: float
    cpu_seconds_per_1000: float
    peak_memory_nbytes: int
    read_nbytes: int
    ratio: Interval | None
    presaving: Presaving | None
    rounds: list[RoundFigures]
    runtime: list[Audit]
    splits: list[SplitTrial] = field(default_factory=list)
    ranks: list[RankResult] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    peak_device_memory_nbytes: int | None = None

    @property
    def straggler(self) -> str:
        """One sentence about the rank that held the others up, and what made it do so; empty for a single rank."""
        return describe_straggler(self.ranks)

    @property
    def samples_per_second(self) -> float:
        """Records per second of wall time."""
        return self.parent.source_records / self.parts.wall_seconds

    @property
    def accelerator_utilisation(self) -> float:
        """Compute alone divided by wall time, as MLPerf Storage defines it. 1.0 if nothing but compute takes time."""
        return self.parts.compute_alone_seconds / self.parts.wall_seconds

    @property
    def overlap(self) -> float:
        """The longer of ETL alone and compute alone, divided by wall time. 1.0 is perfect."""
        return max(self.etl_alone_seconds, self.parts.compute_alone_seconds) / self.parts.wall_seconds

    @property
    def disqualified(self) -> list[str]:
        """Rules of fairness that it broke, each with the evidence; its times do not count if there is any."""
        broken = [check for check in self.parent.checks if self.name in check.broken_by]
        return [f"{check.rule}: {check.broken_by[self.name]}" for check in broken]

    @property
    def verdict(self) -> str:
        """One of "disqualified", "reference", "CPU quota", "too few rounds", "no difference shown", "faster", "slower".

        It is "CPU quota" if that was used up so often that nothing is claimed, "too few rounds" if the ratio has no
        interval, and "no difference shown" if the interval includes 1.
        """
        if self.disqualified:
            return "disqualified"
        if self.name == self.parent.reference:
            return "reference"
        if self.parent.noise.is_throttled:
            return "CPU quota"
        if self.ratio is None or self.ratio.low is None:
            return "too few rounds"
        outcome = self.ratio.outcome()
        return outcome.value if outcome in (Outcome.FASTER, Outcome.SLOWER) else "no difference shown"


@dataclass(frozen=True)
class StageResult(Section["ReportData"]):
    """Result of presaving after one stage, for the whole source.

    Attributes
    ----------
    stage : str
        Last stage before the records are stored; "raw" for no store at all, "read" for a store of encoded records.
    strategy : str
        Strategy that loads.
    format : str or None
        Format of the store.
    write_seconds : float
        Time to write the store; 0 without a store.
    nbytes : int
        Bytes of the store; 0 without a store.
    etl_alone_seconds : float
        Loading an epoch with nothing else running.
    wall_seconds : float
        Wall time of an epoch.
    wall_is_estimated : bool
        True if only loading was measured, and the wall time was estimated from it and from measured compute.
    ratio : Interval or None
        Wall time divided by that of "raw" in the same round; None for "raw", or if one of the two was not measured.
    disqualified : list of str
        Reasons why the stage does not count.
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
        """Records loaded per second with nothing else running."""
        return self.parent.source_records / self.etl_alone_seconds

    @property
    def break_even_epochs(self) -> float | None:
        """Epochs until the store has saved the time to write it; None if it never does, or for "raw"."""
        if self.stage == "raw":
            return None
        return self.parent.break_even_epochs(self.write_seconds, self.wall_seconds)


@dataclass(frozen=True)
class ProfileResult:
    """Profile of the raw pipeline, measured before the rounds.

    Attributes
    ----------
    stages : list of StageProfile
        Each stage in one thread, in order.
    compute_seconds_per_batch : dict of str to float
        Compute alone; the keys are numbers of threads as text.
    splits : list of SplitProfile
        Loading and compute at the same time, for each split of the CPUs.
    copy_bytes_per_second : float
        Memory bandwidth of one copying thread.
    """

    stages: list[StageProfile]
    compute_seconds_per_batch: dict[str, float]
    splits: list[SplitProfile]
    copy_bytes_per_second: float


@dataclass(frozen=True)
class Check:
    """Result of checking one rule of fairness.

    Attributes
    ----------
    rule : str
        Name of the rule, as in `--no-check`.
    title : str
        The rule in words.
    held : bool or None
        True if it held; None if it was not checked.
    evidence : str
        Observations that the result is based on.
    broken_by : dict of str to str
        Strategies that broke it, with the reason.
    """

    rule: str
    title: str
    held: bool | None
    evidence: str
    broken_by: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """The first batches of one epoch. Times are in seconds since the first request for a batch.

    Attributes
    ----------
    strategy : str
        Name of the `StrategyResult`.
    waits : list of [start, end]
        Spans in which compute waited for a batch.
    computes : list of [start, end]
        Spans of compute, one per batch.
    loads : list of [thread, start, end, batch]
        Spans in which a thread loaded a batch; empty if worker processes load.
    """

    strategy: str
    waits: list[tuple[float, float]]
    computes: list[tuple[float, float]]
    loads: list[tuple[int, float, float, int]]


@dataclass(frozen=True)
class ScenarioResult:
    """Prediction of one strategy for a scenario. Seconds are per epoch of the whole source.

    Attributes
    ----------
    strategy : str
        Name of the `StrategyResult`.
    wall_seconds, stall_seconds : float or None
        Wall time, and the part of it in which nothing is computed because the next batch is not ready; None if the
        strategy cannot be predicted.
    accelerator_utilisation : float or None
        Compute alone divided by wall time.
    cpus_for_utilisation : int or None
        Fewest CPUs with which the utilisation is 90%, with everything else as in the scenario; None if there are none.
    reason : str
        Why the strategy is not predicted, or why no number of CPUs is enough; empty if neither is so.
    extrapolated : list of str
        How far the prediction is beyond what this comparison measured or what was validated; empty if it is not.
    cpus_extrapolated : bool
        True if `cpus_for_utilisation` is more CPUs than this comparison used, or extrapolated for another reason.
    """

    strategy: str
    wall_seconds: float | None
    stall_seconds: float | None
    accelerator_utilisation: float | None
    cpus_for_utilisation: int | None
    reason: str
    extrapolated: list[str] = field(default_factory=list)
    cpus_extrapolated: bool = False


@dataclass(frozen=True)
class Scenario:
    """A scenario of `--what-if`, as it was given, with one prediction per strategy."""

    what_if: str
    strategies: list[ScenarioResult]


@dataclass(frozen=True)
class ReportData(Section[None]):
    """Report of a comparison. It has at least one strategy.

    Attributes
    ----------
    schema_version : int
        Version of the schema.
    title : str
        Source, number of records and batch size, as text.
    settings : dict
        Settings of the comparison, with all defaults filled in.
    machine, versions : dict
        Facts about the machine, and versions of Python and packages.
    started_at : str
        Start, in ISO format.
    seconds : float
        Duration of the comparison.
    source_records : int
        Records of the source; metrics of an epoch are scaled to all of them.
    measured_records : int
        Records that were measured.
    batch_size : int
        Records per batch.
    order_seed : int
        Seed of the order of the strategies within each round.
    stopped_early : bool
        True if the rounds ended early, by an interruption or an error.
    recommendation, notes : list of str
        Sentences of advice, and sentences that explain or qualify the metrics.
    strategies : list of StrategyResult
        One result per strategy. The first is the reference.
    stages : list of StageResult
        Results of presaving after each stage; empty if no strategy reads a store.
    profile : ProfileResult
        Profile of the raw pipeline.
    checks : list of Check
        Rules of fairness.
    noise : Noise
        Other activity of the machine.
    timelines : list of Timeline
        First batches of an epoch of each strategy.
    command : str or None
        Command line that made the report; None if it was made from Python.
    tuning : list of TuningResult
        The best settings of each strategy; empty if none was tuned.
    scenarios : list of Scenario
        Predictions for other CPUs, compute or storage; empty if none were asked for.
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
    order_seed: int
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
    tuning: list[TuningResult] = field(default_factory=list)
    scenarios: list[Scenario] = field(default_factory=list)

    @property
    def reference(self) -> str:
        """Name of the reference: the first strategy."""
        return self.strategies[0].name

    @property
    def rounds(self) -> int:
        """Number of rounds, which is the number of measurements of the reference."""
        return len(self.strategies[0].rounds)

    @property
    def unchecked(self) -> list[str]:
        """Rules that were not checked."""
        return [check.rule for check in self.checks if check.held is None]

    def to_json(self) -> str:
        """Return the report as JSON text; its schema is `SCHEMA_VERSION`."""
        return json.dumps(self.as_dict(), indent=1)

    def break_even_epochs(self, write_seconds: float, wall_seconds: float) -> float | None:
        """Return the number of epochs in which a store saves the time to write it.

        The saving is relative to the fastest strategy that reads no store and broke no rule.

        Parameters
        ----------
        write_seconds : float
            Time to write the store.
        wall_seconds : float
            Wall time of an epoch with the store.

        Returns
        -------
        The number; None if the store saves no time, or if there is no strategy to compare it with.
        """
        without = [
            each.parts.wall_seconds for each in self.strategies if each.presaving is None and not each.disqualified
        ]
        if not without or wall_seconds >= min(without):
            return None
        return write_seconds / (min(without) - wall_seconds)

    def shows_sameness(self) -> bool:
        """Return True if some strategy is a user's loader, whose samples may differ."""
        return any(each.is_foreign for each in self.strategies)

    def shows_host_wait(self) -> bool:
        """Return True if some strategy's host wait differs from its stall by more than 1% of its wall time."""
        return any(
            abs(each.host_wait_seconds - each.parts.stall_seconds) > 0.01 * each.parts.wall_seconds
            for each in self.strategies
        )
