"""What a measuring process answers: figures of one workload, one store or one strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etl.comparison.report import SplitProfile, StageProfile
from etl.comparison.settings import Threads
from etl.measuring.clock import EpochFigures, Split
from etl.measuring.values import JsonValues
from etl.runtime.audit import Audit


@dataclass(frozen=True)
class Profile(JsonValues):
    """The raw pipeline, before any strategy is measured.

    Attributes
    ----------
    stages : list of StageProfile
        Each stage in one thread.
    compute_seconds : dict
        Seconds of a training step with nothing else at work, by the number of threads, as text.
    splits : list of SplitProfile
        Loading and compute at once, for each split of the CPUs.
    copy_bytes_per_second : float
        How fast one thread copies memory.
    device : str
        Where compute runs; "none" if it is simulated.
    model : str
        The built-in model for records of this shape.
    """

    stages: list[StageProfile]
    compute_seconds: Mapping[str, float]
    splits: list[SplitProfile]
    copy_bytes_per_second: float
    device: str
    model: str

    @property
    def is_on_device(self) -> bool:
        """True if training is somewhere else than on the CPU."""
        return self.device not in ("cpu", "none")

    def split(self, threads: Threads) -> SplitProfile | None:
        """Return the profile of a split of the CPUs; None if nothing loads ahead with it."""
        wanted = (threads.compute, threads.loading)
        if not threads.loading:
            return None
        return next(each for each in self.splits if (each.compute_threads, each.loading_threads) == wanted)


@dataclass(frozen=True)
class WrittenStore(JsonValues):
    """What writing a store of so many records took, and the bytes of its files."""

    seconds: float
    nbytes: int
    records: int


@dataclass(frozen=True)
class Trial(JsonValues):
    """Seconds of a batch with one split of the CPUs, one for each turn."""

    threads: Threads
    seconds_per_batch: list[float]


@dataclass(frozen=True)
class Trials(JsonValues):
    """Those of all splits."""

    trials: list[Trial]


@dataclass(frozen=True)
class CheckedEpoch(JsonValues):
    """One epoch that was not timed.

    Attributes
    ----------
    digests, records : list of str
        Of each batch, and of each record, in the order in which they came.
    samples : int
        Records.
    score : float or None
        The loss after a few steps.
    weights : str or None
        A digest of the initial weights.
    pages_touched, pages_absent : int
        Pages of all batches, and those that were not in memory after they had been touched.
    peak_memory : int
        Bytes, of this process and its workers.
    """

    digests: list[str]
    records: list[str]
    samples: int
    score: float | None
    weights: str | None
    pages_touched: int
    pages_absent: int
    peak_memory: int


@dataclass(frozen=True)
class LoadingSample(JsonValues):
    """Loading alone: seconds of an epoch, and pages of its files that were not in the cache state asked for."""

    etl_alone: Split
    misplaced_pages: int


@dataclass(frozen=True)
class Spans(JsonValues):
    """Stretches of an epoch's first batches, in seconds from its start; see `report.Timeline`."""

    waits: list[tuple[float, float]]
    computes: list[tuple[float, float]]
    loads: list[tuple[int, float, float, int]]


@dataclass(frozen=True)
class Sample(JsonValues):
    """One timed epoch of a strategy, in a process of its own; seconds, of the records that were measured.

    Attributes
    ----------
    epoch : EpochFigures
        The epoch itself.
    etl_alone : Split or None
        An epoch of loading with nothing else to do, if it was measured.
    compute_alone, harness : float
        Of each batch: the step on a batch in memory with nothing else at work, and the clock's own loop.
    cpu_seconds : float
        Of this process and its workers.
    read_nbytes : int
        Bytes read from files, mapped ones included.
    steal, other_processes : float
        Shares of all CPUs' time.
    speed_probe : float
        Seconds of one fixed calculation, before the epoch.
    frequencies : list of float
        MHz of each CPU.
    affinity : list of int
        The CPUs that the process was bound to.
    torch_threads : int
        Those of compute.
    device : str
        Where compute ran.
    misplaced_pages, unreported_files : int
        Pages of its files that were not in the cache state asked for, and files of which the system does not tell.
    timeline : Spans
        The first batches.
    runtime : list of Audit
        What became of each runtime setting of the process.
    """

    epoch: EpochFigures
    etl_alone: Split | None
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
