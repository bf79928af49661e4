"""From what was measured to the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from etl.comparison.candidate import Candidate
from etl.comparison.machine import describe_machine, describe_versions
from etl.comparison.measured import Measured
from etl.comparison.noise_report import report_noise
from etl.comparison.notes import notes, splits_of
from etl.comparison.prediction import predict_wall
from etl.comparison.recommendation import recommend
from etl.comparison.report import (
    SCHEMA_VERSION,
    Prediction,
    ProfileResult,
    Report,
    SplitProfile,
    StageProfile,
    StrategyResult,
)
from etl.comparison.results import (
    audits_of,
    etl_alone_seconds,
    middle,
    parts_of,
    presaving_of,
    ratio_of,
    round_figures,
    verdict,
)
from etl.comparison.rules import Evidence, Terms, check_rules
from etl.comparison.stage_results import stage_results
from etl.measuring.statistics import Interval


def make_report(measured: Measured) -> Report:
    """The report of `measured`, which has at least one round of one candidate."""
    workload, settings = measured.workload, measured.workload.settings
    evidence = _evidence(measured)
    terms = Terms(
        affinity=measured.affinity,
        memory_nbytes=measured.memory_nbytes,
        cache=settings.cache,
        simulated_seconds=settings.simulated_seconds,
        rounds=measured.rounds,
        unchecked=settings.unchecked,
    )
    checks = check_rules(evidence, terms)
    broken = {
        name: [f"{check.rule}: {check.broken_by[name]}" for check in checks if name in check.broken_by]
        for name in evidence
    }
    without_store = min(
        (each.parts.wall_seconds for name, each in evidence.items() if not each.is_presaved and not broken[name]),
        default=None,
    )
    strategies = _strategies(measured, evidence, broken, without_store)
    reference = strategies[0].name
    model = None if settings.simulated_seconds is not None else settings.model or str(measured.profile["model"])
    return Report(
        schema_version=SCHEMA_VERSION,
        title=f"{settings.source}: {len(workload.whole):,} records, batches of {settings.batch_size}",
        settings={**settings.as_dict(), "threads": workload.cpus, "until": workload.cut, "model": model},
        machine=describe_machine(),
        versions=describe_versions(),
        started_at=measured.started_at,
        seconds=measured.seconds,
        source_records=len(workload.whole),
        measured_records=len(workload.records),
        batch_size=settings.batch_size,
        reference=reference,
        rounds=measured.rounds,
        stopped_early=measured.stopped_early,
        unchecked=list(settings.unchecked),
        recommendation=recommend(strategies, _to_fastest(measured, strategies), reference, settings.source),
        notes=notes(measured),
        strategies=strategies,
        stages=stage_results(measured, without_store),
        profile=_profile(measured),
        checks=checks,
        noise=report_noise([sample for samples in measured.samples.values() for sample in samples.values()]),
        timelines=measured.timelines,
    )


def _evidence(measured: Measured) -> dict[str, Evidence]:
    return {
        measured.name(each): Evidence(
            is_presaved=each.is_presaved,
            threads=measured.threads(each),
            check=measured.checks[each],
            samples=measured.samples[each],
            parts=parts_of(measured.samples[each], measured.scale),
            writing=measured.written(each),
        )
        for each in measured.compared
    }


def _strategies(
    measured: Measured,
    evidence: Mapping[str, Evidence],
    broken: Mapping[str, list[str]],
    without_store: float | None,
) -> list[StrategyResult]:
    """`broken` are the rules that each has broken; `without_store` is the wall time, in seconds, of the fastest
    strategy that needs no store and has broken none.
    """
    scale, reference = measured.scale, measured.compared[0]
    results = []
    for candidate in measured.compared:
        name, samples, threads = measured.name(candidate), measured.samples[candidate], measured.threads(candidate)
        parts, writing = evidence[name].parts, evidence[name].writing
        etl_alone = etl_alone_seconds(samples, scale)
        ratio = None if candidate == reference else ratio_of(samples, measured.samples[reference], scale)
        results.append(
            StrategyResult(
                name=name,
                strategy=candidate.strategy,
                format=candidate.format,
                stage=candidate.stage,
                compute_threads=threads.compute,
                loading_threads=threads.loading,
                parts=parts,
                first_batch_seconds=middle(samples, lambda sample: sample["stall"][0]),
                samples_per_second=scale.records / parts.wall_seconds,
                etl_alone_seconds=etl_alone,
                overlap=max(etl_alone, parts.compute_alone_seconds) / parts.wall_seconds,
                cpu_seconds_per_1000=middle(samples, lambda sample: sample["cpu_seconds"]) / scale.measured * 1000,
                peak_memory_nbytes=max(int(sample["peak_memory"]) for sample in samples.values()),
                read_nbytes=round(scale.amount(middle(samples, lambda sample: sample["read_nbytes"]))),
                ratio=ratio,
                verdict="disqualified" if broken[name] else "reference" if ratio is None else verdict(ratio),
                presaving=None if writing is None else presaving_of(writing, parts.wall_seconds, without_store, scale),
                prediction=_prediction(measured, candidate, parts.wall_seconds),
                runtime=audits_of(samples),
                splits=splits_of(measured, candidate),
                rounds=[round_figures(number, sample) for number, sample in sorted(samples.items())],
                disqualified=broken[name],
            )
        )
    return results


def _prediction(measured: Measured, candidate: Candidate, wall_seconds: float) -> Prediction:
    before = measured.predictions[measured.name(candidate)]
    threads = measured.threads(candidate)
    beside = [
        float(sample["compute_alone"])
        for each in measured.compared
        if measured.threads(each).compute == threads.compute
        for sample in measured.samples[each].values()
    ]
    profile = {**measured.profile, "compute_seconds": {str(threads.compute): statistics.median(beside)}}
    at_speed = predict_wall(measured.workload, candidate, threads, profile)
    return Prediction(before, before / wall_seconds - 1, at_speed, at_speed / wall_seconds - 1)


def _to_fastest(measured: Measured, strategies: list[StrategyResult]) -> dict[str, Interval | None]:
    """The wall time of each over that of the fastest that broke no rule, paired within rounds."""
    valid = [each for each in strategies if not each.disqualified]
    if not valid:
        return {}
    fastest = min(valid, key=lambda each: each.parts.wall_seconds).name
    below = next(measured.samples[each] for each in measured.compared if measured.name(each) == fastest)
    return {measured.name(each): ratio_of(measured.samples[each], below, measured.scale) for each in measured.compared}


def _profile(measured: Measured) -> ProfileResult:
    profile = measured.profile
    return ProfileResult(
        stages=[StageProfile(**stage) for stage in profile["stages"]],
        compute_seconds_per_batch=profile["compute_seconds"],
        splits=[SplitProfile(**split) for split in profile["splits"]],
        copy_bytes_per_second=profile["copy_bytes_per_second"],
    )
