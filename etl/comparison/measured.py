"""All that a comparison has measured, before it is made a report of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from etl.comparison.candidate import Candidate
from etl.comparison.report import Timeline
from etl.comparison.results import Scale
from etl.comparison.samples import Checked, Loads, Profile, Sample, Written
from etl.comparison.splits import SplitSeconds
from etl.comparison.threads import Threads
from etl.comparison.workload import Workload


@dataclass(frozen=True)
class Measured:
    """All answers of the processes that took part in a comparison.

    `samples` and `loads` are by candidate and round: of the candidates that are compared, and of those that tell where
    to cut. `writing` is by format and stage, `predictions` are seconds of an epoch by name, `trials` are seconds of a
    batch with each split of the CPUs. `failed` are candidates that could not be run, with the reason, and `no_server`
    is the reason if a round could not begin.
    """

    workload: Workload
    started_at: str
    seconds: float
    affinity: list[int]
    memory_nbytes: int
    profile: Profile
    predictions: Mapping[str, float]
    trials: Mapping[Candidate, SplitSeconds]
    writing: Mapping[tuple[str, str], Written]
    checks: Mapping[Candidate, Checked]
    failed: Mapping[Candidate, str]
    samples: Mapping[Candidate, Mapping[int, Sample]]
    loads: Mapping[Candidate, Mapping[int, Loads]]
    rounds: int
    stopped_early: bool
    no_server: str
    timelines: list[Timeline]

    @property
    def scale(self) -> Scale:
        """From the records that were measured to an epoch."""
        workload = self.workload
        return Scale(len(workload.whole), len(workload.records), workload.settings.batch_size)

    @property
    def compared(self) -> list[Candidate]:
        """The candidates with samples, in the order in which they were asked for; the first is the reference."""
        return [each for each in self.workload.candidates() if self.samples.get(each)]

    def name(self, candidate: Candidate) -> str:
        """What reports call it."""
        return self.workload.name(candidate)

    def threads(self, candidate: Candidate) -> Threads:
        """Those that it was to have."""
        return self.workload.threads(candidate, self.profile.is_on_device)

    def written(self, candidate: Candidate) -> Written | None:
        """What writing its store cost; None for one that reads none."""
        return self.writing.get((str(candidate.format), str(candidate.stage))) if candidate.is_presaved else None
