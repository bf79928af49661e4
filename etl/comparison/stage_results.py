"""Where to cut the pipeline: no store, and one after each stage."""

from __future__ import annotations

from collections.abc import Mapping

from etl.comparison.candidate import Candidate
from etl.comparison.measured import Measured
from etl.comparison.prediction import slowdowns, wall_seconds
from etl.comparison.report import StageResult
from etl.comparison.results import etl_alone_seconds, parts_of, presaving_of, ratio_of
from etl.comparison.rules import different_batches, pages_astray
from etl.comparison.samples import Loads, Sample


def stage_results(measured: Measured) -> list[StageResult]:
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


def _samples(measured: Measured, candidate: Candidate) -> Mapping[int, Sample | Loads]:
    return {**measured.samples.get(candidate, {}), **measured.loads.get(candidate, {})}


def _estimate(measured: Measured, candidate: Candidate, etl_alone: float) -> float:
    """The wall time of an epoch, from the measured times of loading and of the same strategy's compute."""
    batches = measured.scale.batches
    # A strategy that failed has no compute of its own; that of any other way to load in the same way is the same.
    alike = [each for each in measured.compared if each.is_ahead == candidate.is_ahead] or measured.compared
    compared = next((each for each in alike if each.strategy == candidate.strategy), alike[0])
    compute = parts_of(measured.samples[compared], measured.scale).compute_alone_seconds / batches
    beside = slowdowns(measured.workload, measured.profile, measured.threads(candidate))
    return wall_seconds(batches, etl_alone / batches, compute, beside)


def _same_way(measured: Measured, cut: Candidate) -> Candidate | None:
    plain = [each for each in measured.compared if not each.is_presaved]
    alike = [each for each in plain if each.is_ahead == cut.is_ahead and not each.worker_processes]
    return next(iter(alike or plain), None)


def _faults(measured: Measured, candidate: Candidate) -> list[str]:
    unchecked = measured.workload.settings.unchecked
    astray = pages_astray(_samples(measured, candidate))
    if astray and "cache" not in unchecked:
        return [f"{astray:,} pages of its files were not as --cache {measured.workload.settings.cache} wants them"]
    if "samples" in unchecked:
        return []
    reference = measured.compared[0]
    found = different_batches(measured.checks[candidate], measured.checks[reference], measured.name(reference))
    return [] if found is None else [found]
