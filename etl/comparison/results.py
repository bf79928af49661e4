"""All that a comparison has measured, before it is made a report of.

From samples to results: scaled to the whole source, parts that add up, ratios and costs.

Where to cut the pipeline: no store, and one after each stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from etl.comparison.prediction import slowdowns, wall_seconds
from etl.comparison.report import Noise, Parts, Presaving, RoundFigures, StageResult, Timeline
from etl.comparison.rounds import SplitSeconds
from etl.comparison.rules import different_batches, misplaced_pages
from etl.comparison.samples import CheckedEpoch, LoadingSample, Profile, Sample, WrittenStore
from etl.comparison.settings import Candidate, Threads
from etl.comparison.workload import Workload
from etl.measuring.clock import EpochFigures, Split
from etl.measuring.statistics import Interval, central_mean, paired_ratios, ratio_interval
from etl.runtime import Audit


@dataclass(frozen=True)
class Measurements:
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
    writing: Mapping[tuple[str, str], WrittenStore]
    checks: Mapping[Candidate, CheckedEpoch]
    failed: Mapping[Candidate, str]
    samples: Mapping[Candidate, Mapping[int, Sample]]
    loads: Mapping[Candidate, Mapping[int, LoadingSample]]
    rounds: int
    stopped_early: bool
    no_server: str
    timelines: list[Timeline]

    @property
    def scale(self) -> EpochScale:
        """From the records that were measured to an epoch."""
        workload = self.workload
        return EpochScale(len(workload.source), len(workload.records), workload.settings.batch_size)

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

    def written(self, candidate: Candidate) -> WrittenStore | None:
        """What writing its store cost; None for one that reads none."""
        return self.writing.get((str(candidate.format), str(candidate.stage))) if candidate.is_presaved else None


@dataclass(frozen=True)
class EpochScale:
    """How what was measured on `measured` records becomes that of an epoch of `records`, in batches of `batch_size`."""

    records: int
    measured: int
    batch_size: int

    @property
    def batches(self) -> float:
        """Of a whole epoch; the last counts as the part that it is."""
        return self.records / self._records_a_batch

    def epoch_seconds(self, split: Split) -> float:
        """Of a whole epoch, from the first batch's and the others'."""
        return split.scaled(self.measured / self._records_a_batch, self.batches)

    def amount(self, measured: float) -> float:
        """What grows with the number of records."""
        return measured * self.records / self.measured

    def wall_seconds(self, sample: Sample) -> float:
        """The wall time of an epoch."""
        return self.epoch_seconds(sample.epoch.wall)

    @property
    def _records_a_batch(self) -> int:
        """In one that was measured: where there were fewer records than a batch holds, it held them."""
        return min(self.batch_size, self.measured)


def parts_of(samples: Mapping[int, Sample], scale: EpochScale) -> Parts:
    """Where the wall time of an epoch goes."""

    def of_epoch(split: Callable[[EpochFigures], Split]) -> float:
        return central_estimate(samples, scale, lambda sample: scale.epoch_seconds(split(sample.epoch)))

    alone = central_estimate(samples, scale, lambda sample: sample.compute_alone) * scale.batches
    return Parts(
        wall_seconds=of_epoch(lambda epoch: epoch.wall),
        compute_alone_seconds=alone,
        interference_seconds=of_epoch(lambda epoch: epoch.compute) - alone,
        stall_seconds=of_epoch(lambda epoch: epoch.stall),
        harness_seconds=central_estimate(samples, scale, lambda sample: sample.harness) * scale.batches,
    )


def host_wait_seconds(samples: Mapping[int, Sample], scale: EpochScale) -> float:
    """Seconds of an epoch in which the training loop waited for batches."""
    return central_estimate(samples, scale, lambda sample: scale.epoch_seconds(sample.epoch.host_wait))


def central_estimate(samples: Mapping[int, Sample], scale: EpochScale, figure: Callable[[Sample], float]) -> float:
    """The mean of `figure(sample)` over the rounds whose wall time is in the middle half."""
    return central_mean(
        [figure(sample) for sample in samples.values()], [scale.wall_seconds(sample) for sample in samples.values()]
    )


def etl_alone_seconds(samples: Mapping[int, Sample | LoadingSample], scale: EpochScale) -> float:
    """Seconds to load an epoch with nothing else to do: the median of the rounds in which that was measured."""
    known = [scale.epoch_seconds(each.etl_alone) for each in samples.values() if each.etl_alone is not None]
    return statistics.median(known)


def ratio_of(samples: Mapping[int, Sample], below: Mapping[int, Sample], scale: EpochScale) -> Interval | None:
    """The wall time of an epoch over another strategy's, paired within rounds; None without a common round."""
    above_walls = {number: scale.wall_seconds(sample) for number, sample in samples.items()}
    below_walls = {number: scale.wall_seconds(sample) for number, sample in below.items()}
    ratios = paired_ratios(above_walls, below_walls)
    return ratio_interval(ratios) if ratios else None


def presaving_of(writing: WrittenStore, scale: EpochScale) -> Presaving:
    """What a store costs for the whole source."""
    return Presaving(write_seconds=scale.amount(writing.seconds), nbytes=round(scale.amount(writing.nbytes)))


def round_figures(number: int, sample: Sample) -> RoundFigures:
    """One sample as it is reported, of the records that were measured."""
    epoch = sample.epoch
    return RoundFigures(
        round=number,
        wall_seconds=epoch.wall.total,
        compute_seconds=epoch.compute.total,
        stall_seconds=epoch.stall.total,
        compute_alone_seconds=sample.compute_alone * epoch.batches,
        etl_alone_seconds=None if sample.etl_alone is None else sample.etl_alone.total,
        cpu_seconds=sample.cpu_seconds,
        steal=sample.steal,
        other_processes=sample.other_processes,
        speed_probe_seconds=sample.speed_probe,
    )


def noise_of(samples: Iterable[Sample]) -> Noise:
    """What disturbed them, beside what the figures of their rounds tell."""
    frequencies = [each for sample in samples for each in sample.frequencies]
    return Noise([min(frequencies), max(frequencies)] if frequencies else [])


def audits_of(samples: Mapping[int, Sample]) -> list[Audit]:
    """What became of each runtime setting of a strategy, in the last of its processes."""
    found = {audit.setting: audit for _, sample in sorted(samples.items()) for audit in sample.runtime}
    return list(found.values())


def stage_results(measured: Measurements) -> list[StageResult]:
    """The strategy that loads from its source in the way in which the stores are read, ahead or not, and then a store
    cut after each stage; nothing where nothing is presaved.
    """
    cuts = [each for each in measured.workload.stage_candidates() if _samples(measured, each)]
    if not cuts:
        return []
    raw = _same_way(measured, cuts[0])
    results = []
    for candidate in cuts if raw is None else [raw, *cuts]:
        scale, samples = measured.scale, measured.samples.get(candidate)
        etl_alone = etl_alone_seconds(_samples(measured, candidate), scale)
        wall = _estimate(measured, candidate, etl_alone) if samples is None else parts_of(samples, scale).wall_seconds
        ratio = None
        if raw is not None and candidate != raw and samples is not None:
            ratio = ratio_of(samples, measured.samples[raw], scale)
        written = measured.written(candidate)
        cost = None if written is None else presaving_of(written, scale)
        results.append(
            StageResult(
                stage=candidate.stage or "raw",
                strategy=candidate.strategy,
                format=candidate.format,
                write_seconds=0.0 if cost is None else cost.write_seconds,
                nbytes=0 if cost is None else cost.nbytes,
                etl_alone_seconds=etl_alone,
                wall_seconds=wall,
                wall_is_estimated=samples is None,
                ratio=ratio,
                disqualified=_faults(measured, candidate),
            )
        )
    return results


def _samples(measured: Measurements, candidate: Candidate) -> Mapping[int, Sample | LoadingSample]:
    return {**measured.samples.get(candidate, {}), **measured.loads.get(candidate, {})}


def _estimate(measured: Measurements, candidate: Candidate, etl_alone: float) -> float:
    """The wall time of an epoch, from the measured times of loading and of the same strategy's compute."""
    batches = measured.scale.batches
    # A strategy that failed has no compute of its own; that of any other way to load in the same way is the same.
    alike = [each for each in measured.compared if each.is_ahead == candidate.is_ahead] or measured.compared
    compared = next((each for each in alike if each.strategy == candidate.strategy), alike[0])
    compute = parts_of(measured.samples[compared], measured.scale).compute_alone_seconds / batches
    beside = slowdowns(measured.workload, measured.profile, measured.threads(candidate))
    return wall_seconds(batches, etl_alone / batches, compute, beside)


def _same_way(measured: Measurements, cut: Candidate) -> Candidate | None:
    plain = [each for each in measured.compared if not each.is_presaved]
    alike = [each for each in plain if each.is_ahead == cut.is_ahead and not each.worker_processes]
    return next(iter(alike or plain), None)


def _faults(measured: Measurements, candidate: Candidate) -> list[str]:
    unchecked = measured.workload.settings.unchecked
    astray = misplaced_pages(_samples(measured, candidate))
    if astray and "cache" not in unchecked:
        return [f"{astray:,} pages of its files were not as --cache {measured.workload.settings.cache} wants them"]
    if "samples" in unchecked:
        return []
    reference = measured.compared[0]
    found = different_batches(measured.checks[candidate], measured.checks[reference], measured.name(reference))
    return [] if found is None else [found]
