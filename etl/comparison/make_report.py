"""From what was measured to the report."""

from __future__ import annotations

import statistics
from dataclasses import replace

from etl.comparison.candidate import Candidate
from etl.comparison.machine import describe_machine, describe_versions
from etl.comparison.measured import Measured
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
from etl.comparison.results import noise_of, parts_of, ratio_of, steps_alone, strategy_result
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
    model = None if settings.simulated_seconds is not None else settings.model or str(measured.profile["model"])
    report = Report(
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
        stopped_early=measured.stopped_early,
        recommendation=[],
        notes=notes(measured),
        strategies=[_strategy(measured, each, evidence[measured.name(each)]) for each in measured.compared],
        stages=stage_results(measured),
        profile=_profile(measured),
        checks=check_rules(evidence, terms),
        noise=noise_of(sample for samples in measured.samples.values() for sample in samples.values()),
        timelines=measured.timelines,
    )
    return replace(report, recommendation=recommend(report, _to_fastest(measured, report), settings.source))


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


def _strategy(measured: Measured, candidate: Candidate, evidence: Evidence) -> StrategyResult:
    reference = measured.compared[0]
    return strategy_result(
        measured.name(candidate),
        candidate,
        evidence,
        scale=measured.scale,
        reference=None if candidate == reference else measured.samples[reference],
        prediction=_prediction(measured, candidate),
        splits=splits_of(measured, candidate),
    )


def _prediction(measured: Measured, candidate: Candidate) -> Prediction:
    threads = measured.threads(candidate)
    alike = [each for each in measured.compared if measured.threads(each).compute == threads.compute]
    compute = statistics.median(seconds for each in alike for seconds in steps_alone(measured.samples[each]))
    profile = {**measured.profile, "compute_seconds": {str(threads.compute): compute}}
    return Prediction(
        wall_seconds=measured.predictions[measured.name(candidate)],
        at_speed_seconds=predict_wall(measured.workload, candidate, threads, profile),
    )


def _to_fastest(measured: Measured, report: Report) -> dict[str, Interval | None]:
    """The wall time of each over that of the fastest that broke no rule, paired within rounds."""
    valid = [each for each in report.strategies if not each.disqualified]
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
