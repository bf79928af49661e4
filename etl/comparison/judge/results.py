"""Results, computed from measurements: times of an epoch of the whole source, their parts, ratios and costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from etl.comparison.judge.noise import Noise
from etl.comparison.judge.prediction import slowdowns, wall_seconds
from etl.comparison.judge.prepared_work import PreparedWork
from etl.comparison.judge.rank_results import RankResult
from etl.comparison.judge.report import (
    Losses,
    Parts,
    Presaving,
    RoundFigures,
    SplitTrial,
    StageResult,
    StallTails,
    Timeline,
)
from etl.comparison.judge.rules import misplaced_pages
from etl.comparison.judge.sameness import Sameness, compare_amounts, compare_epochs, displacement, is_shuffled
from etl.comparison.request.answers import AuditedSample, CheckedEpoch, LoadingSample, PipelineProfile, WrittenStore
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.epoch_content import EpochContent, may_hold
from etl.measuring.clock import EpochMetrics, Split
from etl.measuring.rounds import SamplePlace
from etl.measuring.sample import RankSample, Sample
from etl.measuring.statistics import Interval, ratio_intervals
from etl.runtime import Audit
from etl.units import counted

NO_TIME = Split(0.0, 0.0)


@dataclass(frozen=True)
class Measurements:
    """Everything that a comparison has measured.

    Attributes
    ----------
    started_at : str
        Start of the comparison, in ISO format.
    affinity : list of int
        CPUs that every process was bound to.
    trials : dict
        Seconds per batch with each CPU split, by candidate.
    written : dict
        Cost of a store, or of what a user's loader prepares, by candidate; without those that have neither.
    checks : dict
        Untimed epoch of each candidate.
    failed : dict
        Reasons why a candidate, or a part of it, could not be measured.
    samples : dict
        Samples of the candidates that are compared, by candidate and round.
    loads : dict
        Samples of loading alone, by candidate and round: of stores after other stages, which are not compared.
    randomness : str or None
        Sentence that says how records of the source differ from one reading to the next; None if they do not.
    end_reason : str
        Error that ended the rounds early; empty if none did.
    gave_way : str
        What gave way to the time budget; empty if nothing did.
    places : dict
        Position and time of each sample, by candidate and round.
    retaken, disturbed : list of str
        Why samples were taken again, and why others should have been.
    """

    work: PreparedWork
    started_at: str
    seconds: float
    affinity: list[int]
    memory_nbytes: int
    profile: PipelineProfile
    trials: Mapping[Candidate, Mapping[CpuSplit, Sequence[float]]]
    written: Mapping[Candidate, WrittenStore]
    checks: Mapping[Candidate, CheckedEpoch]
    failed: Mapping[Candidate, str]
    samples: Mapping[Candidate, Mapping[int, AuditedSample]]
    loads: Mapping[Candidate, Mapping[int, LoadingSample]]
    randomness: str | None
    rounds: int
    stopped_early: bool
    end_reason: str
    timelines: list[Timeline]
    gave_way: str = ""
    order_seed: int = 0
    places: Mapping[Candidate, Mapping[int, SamplePlace]] = field(default_factory=dict)
    retaken: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)

    @property
    def scale(self) -> EpochScale:
        """Scale from the measured records to an epoch of the whole source."""
        return EpochScale(self.work.source_records, self.work.records, self.work.settings.step_records)

    @property
    def compared(self) -> list[Candidate]:
        """Candidates that have samples, in the requested order. The first is the reference."""
        return [each for each in self.work.candidates if self.samples.get(each)]

    @property
    def own(self) -> Candidate | None:
        """The first strategy of this package that was compared; None if there is none."""
        return next((each for each in self.compared if not each.is_foreign), None)

    def name(self, candidate: Candidate) -> str:
        """Return the candidate's name in reports."""
        return self.work.names[candidate]

    def threads(self, candidate: Candidate) -> CpuSplit:
        """Return the CPU split of `candidate`."""
        return self.work.threads[candidate]

    def sameness(self, candidate: Candidate) -> Sameness:
        """Return how far the records of `candidate` are those of the reference."""
        reference = self.compared[0]
        epoch, expected, name = self.checks[candidate], self.checks[reference], self.name(reference)
        cut_off = {each for each in (candidate, reference) if self._is_cut_off(each)}
        has_other_number = bool(cut_off) and epoch.content.samples != expected.content.samples
        if candidate in self.work.gets_all - cut_off:
            same = self._compare_part(candidate, expected.content, name)
        elif self.work.gets_all & {candidate, reference} or has_other_number:  # a part of an epoch has other records
            same = compare_amounts(epoch.content, expected.content, name)
            order, records = self._source_order(), epoch.content.records
            if order is not None and sorted(records) == sorted(order):
                same = replace(same, displacement=displacement(records, order))
        else:
            same = compare_epochs(epoch.content, expected.content, name, self._source_order())
        shuffled = None
        if same.displacement is not None:
            shuffled = is_shuffled(same.displacement, self.work.settings.batch_size, epoch.content.samples)
        return replace(same, is_shuffled=epoch.reshuffles if shuffled is None else shuffled)

    def _is_cut_off(self, candidate: Candidate) -> bool:
        """Return True if the epoch of a user's loader ended because it had as many batches as were asked for."""
        batches, ranks = self.work.settings.epoch_batches, self.work.settings.ranks
        if batches is None or not candidate.is_foreign:
            return False
        return len(self.checks[candidate].content.digests) >= batches * ranks

    def _compare_part(self, candidate: Candidate, expected: EpochContent, name: str) -> Sameness:
        """Compare a user's loader that cannot be given fewer records: only the amount, since they are others."""
        batches = self.work.tried[candidate.origin].epoch_batches
        records, settings = self.work.source_records, self.work.settings
        ranks = settings.ranks
        workers = max(self.work.cpus * ranks, self.checks[candidate].workers)
        if batches is not None and not may_hold(batches * ranks, records, settings.batch_size, workers):
            has = counted(batches, "batch", "batches")
            wanted = counted(-(-records // settings.step_records), "holds", "hold")
            return Sameness(None, f"its epoch has {has}, and {wanted} the records of the source")
        return compare_amounts(self.checks[candidate].content, expected, name)

    def _source_order(self) -> list[str] | None:
        """Return the digests of the records in the order of the source.

        Return None if no strategy of this package ran; or with several ranks, whose records do not come one after the
        other: whether they are shuffled is then seen from a second epoch.
        """
        if self.own is None or self.work.settings.ranks > 1:
            return None
        digests, order = self.checks[self.own].content.records, self.work.epoch_order
        return [digests[place] for place in np.argsort(order).tolist()]


@dataclass(frozen=True)
class EpochScale:
    """The scale from an epoch of the `measured` records to one of the whole source, which has so many `records`.

    The batch size is that of all ranks together.
    """

    records: int
    measured: int
    batch_size: int

    @property
    def batches(self) -> float:
        """Batches of an epoch; a partial last batch counts as a fraction."""
        return self.records / self._records_a_batch

    def epoch_seconds(self, split: Split, samples: int | None = None, start_up: int = 1) -> float:
        """Return the seconds of an epoch of the whole source; the start-up counts once, the other batches are scaled.

        The measured epoch of `split` had so many `samples`, by default those that were selected.
        """
        return split.scaled((samples or self.measured) / self._records_a_batch, self.batches, start_up)

    def part_seconds(self, split: Split, epoch: EpochMetrics) -> float:
        """Return the seconds that a part of a measured epoch comes to in an epoch of the whole source."""
        return self.epoch_seconds(split, epoch.samples, epoch.start_up)

    def amount(self, measured: float, records: int) -> float:
        """Return the amount for the whole source, from that of so many `records`, to which it is proportional."""
        return measured * self.records / records

    @property
    def _records_a_batch(self) -> int:
        """Records per measured batch: fewer than `batch_size` if fewer records were measured."""
        return min(self.batch_size, self.measured)


def parts_of(samples: Mapping[int, Sample], scale: EpochScale) -> Parts:
    """Return the wall time of an epoch of the whole source, and its parts."""

    def of_epoch(split: Callable[[EpochMetrics], Split]) -> float:
        return mean_of(samples, lambda sample: scale.part_seconds(split(sample.epoch), sample.epoch))

    alone = mean_of(samples, lambda sample: sample.compute_alone) * scale.batches
    return Parts(
        wall_seconds=of_epoch(lambda epoch: epoch.wall),
        compute_alone_seconds=alone,
        interference_seconds=of_epoch(lambda epoch: epoch.compute) - alone,
        stall_seconds=of_epoch(lambda epoch: epoch.stall),
        harness_seconds=mean_of(samples, lambda sample: sample.harness) * scale.batches,
    )


def host_wait_seconds(samples: Mapping[int, Sample], scale: EpochScale) -> float:
    """Return the seconds per epoch in which the training loop waited for batches."""
    return mean_of(samples, lambda sample: scale.part_seconds(sample.epoch.host_wait, sample.epoch))


def losses_of(samples: Mapping[int, Sample], scale: EpochScale) -> Losses:
    """Return what an epoch of the whole source loses, as far as all rounds know it.

    The start-up counts once. If a whole epoch has no more batches than that, only its share of the start-up counts.
    """

    def start_up(sample: Sample) -> float:
        first = sample.epoch.stall.first
        return min(first, scale.part_seconds(Split(first, 0.0), sample.epoch))

    def seconds(get: Callable[[Sample], Split | None]) -> float | None:
        if any(get(each) is None for each in samples.values()):
            return None
        return mean_of(samples, lambda sample: scale.part_seconds(get(sample) or NO_TIME, sample.epoch))

    storage = seconds(lambda sample: sample.storage)
    methods = {each.loading_waits.method for each in samples.values() if each.loading_waits is not None}
    return Losses(
        start_up_seconds=mean_of(samples, start_up),
        storage_seconds=storage,
        transfer_seconds=seconds(lambda sample: sample.transfer),
        storage_method=None if storage is None else max(methods),  # "psi" if a round needed it
    )


def stall_tails_of(samples: Mapping[int, Sample]) -> StallTails:
    """Return the stalls before single batches, of all rounds; the first of an epoch counts only if it is alone."""
    stalls = np.array([stall for each in samples.values() for stall in each.later_stalls])
    median, p99 = np.quantile(stalls, (0.5, 0.99))
    return StallTails(float(median), float(p99), float(stalls.max()))


def mean_of(samples: Mapping[int, Sample], metric: Callable[[Sample], float]) -> float:
    """Return the mean of a metric over all rounds, so that parts add up, and ratios are ratios of means."""
    return statistics.fmean(map(metric, samples.values()))


def etl_alone_seconds(samples: Mapping[int, Sample | LoadingSample], scale: EpochScale) -> float:
    """Return the seconds per epoch of loading alone: the median of the rounds in which it was measured."""
    known = [
        scale.part_seconds(each.etl_alone, each.epoch)
        if isinstance(each, Sample)
        else scale.epoch_seconds(each.etl_alone)
        for each in samples.values()
        if each.etl_alone is not None
    ]
    return statistics.median(known)


def ranks_of(samples: Mapping[int, Sample], check: CheckedEpoch, scale: EpochScale) -> list[RankResult]:
    """Return the ranks of a strategy; none if there is only one."""

    def result(rank: int, peak_memory: int) -> RankResult:
        def seconds(get: Callable[[RankSample], Split]) -> float:
            return mean_of(samples, lambda sample: scale.part_seconds(get(sample.ranks[rank]), sample.epoch))

        own = [sample.ranks[rank] for sample in samples.values()]
        waits = [each.waits for each in own]
        are_together = None not in waits
        waited = seconds(lambda each: each.waits or NO_TIME) if are_together else 0.0
        return RankResult(
            rank=rank,
            cpus=own[-1].cpus,
            wall_seconds=seconds(lambda each: each.epoch.wall),
            stall_seconds=seconds(lambda each: each.epoch.stall),
            host_wait_seconds=seconds(lambda each: each.epoch.host_wait),
            first_batch_seconds=mean_of(samples, lambda each: each.ranks[rank].first_batch),
            compute_seconds=seconds(lambda each: each.epoch.compute) - waited,
            rank_wait_seconds=waited if are_together else None,
            last_share=sum(each.last for each in own) / sum(each.epoch.batches for each in own),
            peak_memory_nbytes=peak_memory,
        )

    return [result(rank, nbytes) for rank, nbytes in enumerate(check.peak_memory_of_ranks)]


def ratios_of(
    samples: Mapping[Candidate, Mapping[int, Sample]], reference: Candidate, scale: EpochScale
) -> dict[Candidate, Interval]:
    """Return the wall time of each other candidate over that of the reference, with intervals that hold together."""
    walls = {
        each: {number: scale.part_seconds(sample.epoch.wall, sample.epoch) for number, sample in taken.items()}
        for each, taken in samples.items()
    }
    return ratio_intervals(walls, reference)


def presaving_of(writing: WrittenStore, scale: EpochScale) -> Presaving:
    """Return the cost of a store, or of other prepared files, for the whole source."""
    records = writing.records
    return Presaving(scale.amount(writing.seconds, records), round(scale.amount(writing.nbytes, records)))


def round_metrics(number: int, sample: Sample, place: SamplePlace) -> RoundFigures:
    """Return the metrics of one sample for the report, for the measured records."""
    epoch = sample.epoch
    return RoundFigures(
        round=number,
        position=place.position,
        started_at=place.started_at,
        wall_seconds=epoch.wall.total,
        compute_seconds=epoch.compute.total,
        stall_seconds=epoch.stall.total,
        compute_alone_seconds=sample.compute_alone * epoch.batches,
        etl_alone_seconds=None if sample.etl_alone is None else sample.etl_alone.total,
        cpu_seconds=sample.cpu_seconds,
        steal=sample.steal,
        other_processes=sample.other_processes,
        speed_probe_seconds=max(each.cpu for each in sample.probes),
        memory_probe_seconds=max(each.memory for each in sample.probes),
        throttled=sample.throttled,
        start_up_batches=epoch.start_up,
    )


def noise_of(measured: Measurements) -> Noise:
    """Return what the report cannot compute from the metrics of its rounds."""
    samples = [sample for taken in measured.samples.values() for sample in taken.values()]
    frequencies = [each for sample in samples for each in sample.frequencies]
    return Noise([min(frequencies), max(frequencies)] if frequencies else [], measured.retaken, measured.disturbed)


def audits_of(samples: Mapping[int, AuditedSample]) -> list[Audit]:
    """Return the audit of each runtime setting of a strategy, from the last process that has one."""
    found = {audit.setting: audit for _, sample in sorted(samples.items()) for audit in sample.runtime}
    return list(found.values())


def splits_of(measured: Measurements, candidate: Candidate) -> list[SplitTrial]:
    """Return the CPU splits that `candidate` was tried with."""
    return [
        SplitTrial(
            compute_threads=split.compute,
            loading_threads=split.loading,
            trials=len(each),
            epoch_seconds=statistics.median(each) * measured.scale.batches,
        )
        for split, each in measured.trials.get(candidate, {}).items()
    ]


def stage_results(measured: Measurements) -> list[StageResult]:
    """Return one result for presaving after each stage; no results if no strategy reads a store.

    The first result is a strategy without a store, for comparison, if there is one. It loads ahead if the others do and
    such a strategy was measured.
    """
    stored = [each for each in measured.work.stage_candidates if _samples(measured, each)]
    if not stored:
        return []
    scale, raw = measured.scale, _without_store(measured, stored[0])
    ratios = {} if raw is None else ratios_of(measured.samples, raw, scale)
    results = []
    for candidate in stored if raw is None else [raw, *stored]:
        samples = measured.samples.get(candidate)
        etl_alone = etl_alone_seconds(_samples(measured, candidate), scale)
        wall = _estimate(measured, candidate, etl_alone) if samples is None else parts_of(samples, scale).wall_seconds
        written = measured.written.get(candidate)
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
                ratio=ratios.get(candidate),
                disqualified=_faults(measured, candidate),
            )
        )
    return results


def _samples(measured: Measurements, candidate: Candidate) -> Mapping[int, Sample | LoadingSample]:
    return {**measured.samples.get(candidate, {}), **measured.loads.get(candidate, {})}


def _estimate(measured: Measurements, candidate: Candidate, etl_alone: float) -> float:
    """Estimate the seconds of an epoch from measured loading, and from compute as measured with the same strategy."""
    batches = measured.scale.batches
    # If the strategy failed, use the compute of another one that loads in the same way (ahead or not).
    alike = [each for each in measured.compared if each.is_ahead == candidate.is_ahead] or measured.compared
    compared = next((each for each in alike if each.strategy == candidate.strategy), alike[0])
    compute = parts_of(measured.samples[compared], measured.scale).compute_alone_seconds / batches
    factors = slowdowns(measured.work.settings, measured.profile, measured.threads(candidate))
    return wall_seconds(batches, etl_alone / batches, compute, factors)


def _without_store(measured: Measurements, stored: Candidate) -> Candidate | None:
    plain = [each for each in measured.compared if not (each.is_presaved or each.is_foreign)]
    alike = [each for each in plain if each.is_ahead == stored.is_ahead and not each.worker_processes]
    return next(iter(alike or plain), None)


def _faults(measured: Measurements, candidate: Candidate) -> list[str]:
    unchecked = measured.work.settings.unchecked
    misplaced = misplaced_pages(_samples(measured, candidate))
    if misplaced and "cache" not in unchecked:
        pages = counted(misplaced, "page of its files was", "pages of its files were")
        return [f"{pages} not in the state of --cache {measured.work.settings.cache}"]
    if "samples" in unchecked or measured.randomness is not None:
        return []
    own = measured.own or measured.compared[0]
    same = compare_epochs(measured.checks[candidate].content, measured.checks[own].content, measured.name(own))
    return [] if same.level == "identical" else [same.reason]
