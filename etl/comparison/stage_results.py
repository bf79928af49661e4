"""Where to cut the pipeline: no store, and one after each stage."""

from __future__ import annotations

from collections.abc import Mapping

from etl.comparison.candidate import Candidate
from etl.comparison.measured import Measured
from etl.comparison.prediction import split_profile, wall_seconds
from etl.comparison.report import StageResult
from etl.comparison.results import Sample, etl_alone_seconds, parts_of, presaving_of, ratio_of
from etl.comparison.rules import different_batches, pages_astray


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
        samples, scale = _samples(measured, candidate), measured.scale
        is_estimated = candidate not in measured.samples
        etl_alone = etl_alone_seconds(samples, scale)
        wall = _estimate(measured, candidate, etl_alone) if is_estimated else parts_of(samples, scale).wall_seconds
        ratio = None
        if raw is not None and candidate != raw and not is_estimated:
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
                wall_is_estimated=is_estimated,
                ratio=ratio,
                disqualified=_faults(measured, candidate),
            )
        )
    return results


def _samples(measured: Measured, candidate: Candidate) -> Mapping[int, Sample]:
    found = measured.samples.get(candidate) or measured.loads.get(candidate)
    return found or {}


def _estimate(measured: Measured, candidate: Candidate, etl_alone: float) -> float:
    """The wall time of an epoch, from the measured times of loading and of the same strategy's compute."""
    batches = measured.scale.batches
    # A strategy that failed has no compute of its own; that of any other way to load in the same way is the same.
    alike = [each for each in measured.compared if each.is_ahead == candidate.is_ahead] or measured.compared
    compared = next((each for each in alike if each.strategy == candidate.strategy), alike[0])
    compute = parts_of(measured.samples[compared], measured.scale).compute_alone_seconds / batches
    split = split_profile(measured.profile, measured.threads(candidate))
    return wall_seconds(batches, etl_alone / batches, compute, split)


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
    digests, expected = (measured.checks[each]["digests"] for each in (candidate, reference))
    found = different_batches(digests, expected, measured.name(reference))
    return [] if found is None else [found]
