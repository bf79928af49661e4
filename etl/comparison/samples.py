"""Results of the measuring processes: one dataclass for each kind of measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etl.comparison.candidates import Threads
from etl.comparison.report import SplitProfile, StageProfile
from etl.comparison.sameness import EpochContent
from etl.measuring.clock import EpochMetrics, Split
from etl.measuring.values import JsonValues
from etl.measuring.waiting import WaitTimes
from etl.runtime.audit import Audit


@dataclass(frozen=True)
class Profile(JsonValues):
    """Profile of the raw pipeline, measured before any strategy.

    Attributes
    ----------
    stages : list of StageProfile
        Each stage in one thread.
    compute_seconds : dict
        Seconds per step with nothing else running, by number of threads (as text).
    splits : list of SplitProfile
        Loading and compute at the same time, for each CPU split.
    copy_bytes_per_second : float
        Memory bandwidth of one copying thread.
    device : str
        Device of compute; "none" if compute is simulated.
    model : str
        Built-in model for records of this shape.
    decodings : dict
        Each stage in one thread with other decoders, by decoder.
    """

    stages: list[StageProfile]
    compute_seconds: Mapping[str, float]
    splits: list[SplitProfile]
    copy_bytes_per_second: float
    device: str
    model: str
    decodings: Mapping[str, list[StageProfile]] = field(default_factory=dict)

    def nbytes_after(self, stage: str) -> float:
        """Return the bytes of a record after `stage`."""
        return next(each.nbytes_per_record for each in self.stages if each.name == stage)

    @property
    def is_on_device(self) -> bool:
        """True if compute runs on a device other than the CPU."""
        return self.device not in ("cpu", "none")

    def split(self, threads: Threads) -> SplitProfile | None:
        """Return the profile of a CPU split; None if the split has no loading threads."""
        wanted = (threads.compute, threads.loading)
        if not threads.loading:
            return None
        return next(each for each in self.splits if (each.compute_threads, each.loading_threads) == wanted)


@dataclass(frozen=True)
class WrittenStore(JsonValues):
    """Cost of a store, or of what a loader of the user prepares.

    Attributes
    ----------
    seconds : float
        Time to write it.
    nbytes : int
        Bytes of its files.
    records : int
        Records in it.
    asked_for : list of str
        Of "path" and "source", what the loader's `prepare` asked for.
    """

    seconds: float
    nbytes: int
    records: int
    asked_for: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial(JsonValues):
    """Trials of one CPU split: seconds per batch, one value per turn."""

    threads: Threads
    seconds_per_batch: list[float]


@dataclass(frozen=True)
class Trials(JsonValues):
    """Trials of all CPU splits of a candidate."""

    trials: list[Trial]


@dataclass(frozen=True)
class Decoding(JsonValues):
    """The stages of a pipeline with another decoder, in one thread."""

    stages: list[StageProfile]


@dataclass(frozen=True)
class TuningSample(JsonValues):
    """Training on some batches of an epoch, in a fresh process. Times are in seconds.

    Attributes
    ----------
    first_seconds : float
        Until the first step was done.
    seconds_per_batch : float
        In the middle of the epoch.
    peak_memory : int
        Peak memory in bytes, of the process and its workers together, in an epoch that was not timed.
    throttled : float
        Share of the periods of a CPU quota in which it was used up.
    """

    first_seconds: float
    seconds_per_batch: float
    peak_memory: int
    throttled: float = 0.0

    def epoch_seconds(self, batches: float) -> float:
        """Return the seconds of an epoch of `batches`, of which a partial last one counts as a fraction."""
        return self.first_seconds + max(0.0, batches - 1) * self.seconds_per_batch


@dataclass(frozen=True)
class TriedLoader(JsonValues):
    """A first try of a loader of the user. Times are in seconds.

    Attributes
    ----------
    first_seconds : float
        From calling its function until its first batch could be read.
    seconds_per_batch : float
        Mean of the batches after the first.
    batches, samples : int
        Batches and records that were loaded.
    has_ended : bool
        True if its epoch ended within the try.
    epoch_batches : int or None
        Batches of its epoch; None if the epoch did not end and the loader has no length.
    read_ahead : int
        Batches that it may load ahead.
    has_selected_records : bool
        True if an epoch has as many batches as the records that were selected for the try.
    compute_seconds : float
        Compute alone, per batch.
    device : str
        Device of compute.
    asked_for : list of str
        Of "path" and "source", what it asked for.
    start_seconds : float
        Seconds to start a process of its own; 0 if it can be forked from the server of all strategies.
    settings : dict of str to list
        Values worth trying of each setting: those that its function declares, and those of its torch DataLoader.
    given : dict of str to str, int, float, bool or None
        Values of these settings in the try. A setting that the function reads from the whole task has none.
    """

    first_seconds: float
    seconds_per_batch: float
    batches: int
    samples: int
    has_ended: bool
    epoch_batches: int | None
    read_ahead: int
    has_selected_records: bool
    compute_seconds: float
    device: str
    asked_for: list[str] = field(default_factory=list)
    start_seconds: float = 0.0
    settings: Mapping[str, list[Any]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FirstTry(JsonValues):
    """Result of the first process of a loader of the user: one of the two, since `prepare` has a process of its own.

    Attributes
    ----------
    prepared : WrittenStore or None
        Cost of what it prepared; None if there is nothing to prepare.
    tried : TriedLoader or None
        Its first try; None if it had to prepare its files first.
    """

    prepared: WrittenStore | None
    tried: TriedLoader | None


@dataclass(frozen=True)
class CheckedEpoch(JsonValues):
    """An epoch that was checked but not timed.

    Attributes
    ----------
    content : EpochContent
        Digests and signatures of its records, for comparing it with other epochs.
    reshuffles : bool or None
        True if a second epoch had the same records in another order. None if there was none, or if it had other ones.
    score : float or None
        `Compute.score` after a few steps.
    weights : str or None
        Digest of the initial weights; None if they are unknown.
    pages_touched, pages_absent : int
        Pages of all batches, and those of them that were not in memory although they had been touched.
    unread : str
        Arrays that were not read while loading was timed, and why; empty if all were.
    peak_memory : int
        Peak memory in bytes, of the process and its workers together.
    left_behind : list of str
        Command lines of processes that were still running after the loader was closed.
    printed_lines : int
        Lines that a loader of the user printed to standard output.
    first_printed : str
        The first of them, shortened.
    mapped : dict of str to int
        Resident bytes of each file that the process maps; empty if it is not one of several ranks.
    peak_memory_of_ranks : list of int
        Peak memory of each rank; empty if there is one.
    peak_device_memory : int or None
        Most bytes that torch's allocator had given out on CUDA devices; None if the process used none.
    make_seconds : float
        Seconds in which the loader was made.
    epoch_waits : list of float
        Seconds of waiting for the batches of the epoch and, if there was one, of the second epoch.
    """

    content: EpochContent
    reshuffles: bool | None
    score: float | None
    weights: str | None
    pages_touched: int
    pages_absent: int
    unread: str
    peak_memory: int
    left_behind: list[str] = field(default_factory=list)
    printed_lines: int = 0
    first_printed: str = ""
    mapped: Mapping[str, int] = field(default_factory=dict)
    peak_memory_of_ranks: list[int] = field(default_factory=list)
    peak_device_memory: int | None = None
    make_seconds: float = 0.0
    epoch_waits: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class LoadingSample(JsonValues):
    """One epoch of loading alone: its seconds, and pages of its files that were not in the requested cache state."""

    etl_alone: Split
    misplaced_pages: int


@dataclass(frozen=True)
class Spans(JsonValues):
    """Spans of waiting, compute and loading in an epoch's first batches; see `report.Timeline`."""

    waits: list[tuple[float, float]]
    computes: list[tuple[float, float]]
    loads: list[tuple[int, float, float, int]]


@dataclass(frozen=True)
class StepTimes(JsonValues):
    """When each step of an epoch began and was done, by the clock that all processes of a machine share."""

    began: list[float]
    done: list[float]


@dataclass(frozen=True)
class RankSample(JsonValues):
    """The timed epoch of one of several ranks.

    Attributes
    ----------
    epoch : EpochMetrics
        Times of the epoch, in seconds.
    compute_alone : float
        Seconds per step with nothing else running but the other ranks.
    waits : Split or None
        The part of its steps in which it waited for ranks whose batches came later. None if ranks do not wait for each
        other in every step.
    last : int
        Steps that it began later than all other ranks.
    cpus : list of int
        CPUs that it was bound to.
    """

    epoch: EpochMetrics
    compute_alone: float
    waits: Split | None
    last: int
    cpus: list[int]


@dataclass(frozen=True)
class Sample(JsonValues):
    """A timed epoch of a strategy in a fresh process. Times are in seconds, for the measured records.

    Attributes
    ----------
    epoch : EpochMetrics
        Times of the epoch.
    etl_alone : Split or None
        Times of an epoch of loading alone; None if it was not measured.
    stalls : list of float
        Seconds of the stall before each batch.
    compute_alone, harness : float
        Seconds per batch of a step on a batch in memory with nothing else running, and of the measuring loop itself.
    cpu_seconds : float
        CPU time of the process and its workers.
    read_nbytes : int
        Bytes read from files, including mapped files.
    steal, other_processes : float
        Shares of all CPU time that were taken by the hypervisor and by other processes.
    speed_probe : float
        Seconds of a fixed calculation before the epoch.
    frequencies : list of float
        MHz of each CPU.
    affinity : list of int
        CPUs that the process was bound to.
    torch_threads : int
        Compute threads; 0 if torch was not loaded.
    device : str
        Device of compute.
    misplaced_pages, unreported_files : int
        Pages of its files that were not in the requested cache state, and files for which this cannot be checked.
    timeline : Spans
        Spans of the first batches.
    runtime : list of Audit
        Audit of each runtime setting of the process.
    steps : StepTimes or None
        Moments of the steps, if this is one of several ranks.
    ranks : list of RankSample
        The ranks, if this is a sample of several.
    etl_cpu_seconds : float or None
        CPU time of the epoch of loading alone; None if it was not measured.
    loading_waits : WaitTimes or None
        What loading did while the training loop waited, without the first batch; None if that is unknown.
    transfer : Split or None
        The part of its steps in which they waited for the copy of their batch to the device. None if that is unknown.
    throttled : float
        Share of the periods of a CPU quota in which it was used up.
    """

    epoch: EpochMetrics
    etl_alone: Split | None
    stalls: list[float]
    compute_alone: float
    harness: float
    cpu_seconds: float
    read_nbytes: int
    steal: float
    other_processes: float
    speed_probe: float
    frequencies: list[float]
    affinity: list[int]
    torch_threads: int
    device: str
    misplaced_pages: int
    unreported_files: int
    timeline: Spans
    runtime: list[Audit] = field(default_factory=list)
    steps: StepTimes | None = None
    ranks: list[RankSample] = field(default_factory=list)
    etl_cpu_seconds: float | None = None
    loading_waits: WaitTimes | None = None
    transfer: Split | None = None
    throttled: float = 0.0

    @property
    def storage(self) -> Split | None:
        """The part of the stall in which data were waited for, without that before the first batch; None if unknown.

        A loop beside a device may wait without a stall, so this is a share of the stall.
        """
        waits, stall = self.loading_waits, self.epoch.stall.rest
        storage = None if waits is None else waits.storage
        if waits is None or storage is None:
            return None
        return Split(0.0, stall * storage / waits.waited if waits.waited else 0.0)
