"""Results of the measuring processes: one dataclass for each kind of measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.epoch_content import EpochContent
from etl.measuring.clock import Split
from etl.measuring.sample import Sample
from etl.measuring.values import JsonValues
from etl.runtime.audit import Audit


@dataclass(frozen=True)
class StageProfile:
    """One stage of the raw pipeline in one thread: seconds per record, and bytes of the features that it returns."""

    name: str
    seconds_per_record: float
    nbytes_per_record: float


@dataclass(frozen=True)
class SplitProfile:
    """Profile of one split of the CPUs.

    Attributes
    ----------
    compute_threads, loading_threads : int
        The split.
    records_per_second : float
        Records that the loading threads load through the raw pipeline with nothing else running.
    compute_slowdown, loading_slowdown : float
        Factors by which compute and loading take longer if both run at the same time; 1.0 for no slowdown.
    """

    compute_threads: int
    loading_threads: int
    records_per_second: float
    compute_slowdown: float
    loading_slowdown: float


@dataclass(frozen=True)
class PipelineProfile(JsonValues):
    """Profile of the raw pipeline, measured before the rounds.

    Attributes
    ----------
    compute_seconds : dict
        Seconds per step with nothing else running, by number of threads (as text).
    device : str
        Device of compute; "none" if compute is simulated.
    on_one_cpu : SplitProfile or None
        Loading and compute at the same time on one CPU; None if no scenario has one.
    """

    stages: list[StageProfile]
    compute_seconds: Mapping[str, float]
    splits: list[SplitProfile]
    copy_bytes_per_second: float
    device: str
    on_one_cpu: SplitProfile | None = None

    def split(self, threads: CpuSplit) -> SplitProfile | None:
        """Return the profile of a CPU split; None if the split has no loading threads."""
        wanted = (threads.compute, threads.loading)
        if not threads.loading:
            return None
        return next(each for each in self.splits if (each.compute_threads, each.loading_threads) == wanted)


@dataclass(frozen=True)
class WrittenStore(JsonValues):
    """Cost of a store, or of what a user's loader prepares: the time to write it, and the bytes of its files.

    In `requested` is, of "path" and "source", what the loader's `prepare` asked for.
    """

    seconds: float
    nbytes: int
    records: int
    requested: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TuningSample(JsonValues):
    """Training on some batches of an epoch, in a fresh process. Times are in seconds.

    Attributes
    ----------
    first_seconds : float
        Until the first step was done.
    seconds_per_batch : float
        In the middle of the epoch.
    peak_memory, throttled, device : int, float, str
        Those of the `Sample`.
    """

    first_seconds: float
    seconds_per_batch: float
    peak_memory: int
    throttled: float = 0.0
    device: str = "cpu"

    @classmethod
    def of(cls, sample: Sample) -> TuningSample:
        """Return what tuning needs of a sample."""
        wall, start_up = sample.epoch.wall, sample.epoch.start_up
        rest = sample.epoch.batches - start_up
        per_batch = wall.rest / rest if rest else wall.total / sample.epoch.batches
        first = max(0.0, wall.first - (start_up - 1) * per_batch) + (wall.end if rest else 0.0)
        return cls(first, per_batch, sample.peak_memory, sample.throttled, sample.device)

    def epoch_seconds(self, batches: float) -> float:
        """Return the seconds of an epoch of `batches`, of which a partial last one counts as a fraction."""
        return self.first_seconds + max(0.0, batches - 1) * self.seconds_per_batch


@dataclass(frozen=True)
class TriedLoader(JsonValues):
    """A first try of a user's loader. Times are in seconds.

    Attributes
    ----------
    seconds_per_batch : float
        Mean of the batches after the first.
    has_ended : bool
        True if its epoch ended within the try.
    epoch_batches : int or None
        Batches of its epoch; None if the epoch did not end and the loader has no length.
    read_ahead : int
        Batches that it may load ahead.
    workers : int
        Processes of its torch DataLoader, which deliver a batch each at the same time; 0 if there is none.
    has_selected_records : bool
        True if an epoch has as many batches as the records that were selected for the try.
    compute_seconds : float
        Compute alone, per batch.
    requested : list of str
        Of "path" and "source", what it asked for.
    settings : dict of str to list
        Values worth trying of each setting: those that its function declares, and those of its torch DataLoader.
    given : dict of str to str, int, float, bool or None
        Values of these settings in the try. A setting that the function reads from the whole task has none.
    """

    seconds_per_batch: float
    batches: int
    samples: int
    has_ended: bool
    epoch_batches: int | None
    read_ahead: int
    workers: int
    has_selected_records: bool
    compute_seconds: float
    requested: list[str] = field(default_factory=list)
    settings: Mapping[str, list[Any]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FirstTry(JsonValues):
    """Result of the first process of a user's loader: the cost of what it prepared or, if that is nothing, its try.

    It is one of the two, since `prepare` has a process of its own.
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
        True if a second epoch had the same records in another order. None if it had other ones, or was not looked at.
    score : float or None
        `Compute.score` after a few steps.
    weights : str or None
        Digest of the initial weights; None if they are unknown.
    pages_touched, pages_absent : int
        Pages of all batches, and those of them that were not in memory although they had been touched.
    unread : str
        Arrays that were not read while loading was timed, and why; empty if all were.
    left_behind : list of str
        Command lines of processes that were still running after the loader was closed.
    printed_lines : int
        Lines that a user's loader printed to standard output.
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
    first_seconds, batch_seconds : float
        Seconds until the first batch was there, and in the middle of the epoch for loading a batch and a step.
    device : str
        Device of compute; "none" if it is simulated, or was not looked at.
    compute_seconds : dict of str to float
        Compute alone in seconds per batch, by number of threads, if that was asked for.
    workers : int
        Processes of its torch DataLoader, which may each end with an incomplete batch; 0 if there is none.
    torch_threads : int
        Compute threads; 0 if torch was not loaded.
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
    first_seconds: float = 0.0
    batch_seconds: float = 0.0
    device: str = "none"
    compute_seconds: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0
    torch_threads: int = 0


@dataclass(frozen=True)
class LoadingSample(JsonValues):
    """One epoch of loading alone: its seconds, and pages of its files that were not in the requested cache state."""

    etl_alone: Split
    misplaced_pages: int


@dataclass(frozen=True)
class AuditedSample(Sample):
    """A sample with an audit of each runtime setting of its process; with none, unless it also loads alone."""

    runtime: list[Audit] = field(default_factory=list)


def audited(answer: JsonValues, policies: Sequence[Any]) -> JsonValues:
    """Return `answer`, if it is a sample with an audit of the runtime policies that are in force.

    An audit takes a tenth of a second, so the samples of the first round have one: those that also load alone.
    """
    if not isinstance(answer, Sample):
        return answer
    audits = [] if answer.etl_alone is None else [each.audit() for each in policies]
    return AuditedSample(**vars(answer), runtime=audits)
