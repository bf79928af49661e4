"""The report, made from measurements: facts about the machine, and a check that no metrics contradict each other."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from etl.comparison.judge.costs import make_scenarios
from etl.comparison.judge.recommendation import make_notes, recommend
from etl.comparison.judge.report import (
    SCHEMA_VERSION,
    Check,
    ProfileResult,
    Report,
    StrategyResult,
)
from etl.comparison.judge.results import (
    Measurements,
    audits_of,
    etl_alone_seconds,
    host_wait_seconds,
    losses_of,
    mean_of,
    noise_of,
    parts_of,
    presaving_of,
    ranks_of,
    ratios_of,
    round_metrics,
    splits_of,
    stage_results,
    stall_tails_of,
)
from etl.comparison.judge.rules import RULES, Conditions, Evidence, check_rules
from etl.comparison.request.candidates import Candidate
from etl.measuring.instruments import current_instruments
from etl.measuring.noise import frequencies
from etl.measuring.statistics import Interval
from etl.runtime.resources import available_cpus, cgroup_quota, usable_nbytes
from etl.training.compute import INFERENCE, default_model


def make_report(measured: Measurements) -> Report:
    """Make the report of `measured`, which must have samples of at least one candidate."""
    work, settings = measured.work, measured.work.settings
    evidence = _evidence(measured)
    conditions = Conditions(
        affinity=measured.affinity,
        memory_nbytes=measured.memory_nbytes,
        batch_size=settings.batch_size,
        cache=settings.cache,
        simulated_seconds=settings.simulated_seconds,
        infers=settings.compute == INFERENCE,
        waits_for_steps=settings.waits_for_steps,
        ranks=settings.ranks,
        rounds=measured.rounds,
        randomness=measured.randomness,
        unchecked=settings.unchecked,
        retaken=len(measured.retaken),
    )
    on_ranks = f" on each of {settings.ranks} ranks" if settings.ranks > 1 else ""
    runs_model = settings.simulated_seconds is None and settings.step is None
    model = (settings.model or _model_of(measured)) if runs_model else None
    ratios = ratios_of(measured.samples, measured.compared[0], measured.scale)
    report = Report(
        schema_version=SCHEMA_VERSION,
        title=f"{settings.title}: {work.source_records:,} records, batches of {settings.batch_size}{on_ranks}",
        settings={
            **settings.to_json(),
            "threads": len(measured.affinity),
            "until": work.presave_stage,
            "model": model,
        },
        machine=describe_machine(),
        versions=describe_versions(),
        started_at=measured.started_at,
        seconds=measured.seconds,
        source_records=work.source_records,
        measured_records=work.records,
        batch_size=settings.batch_size,
        order_seed=measured.order_seed,
        stopped_early=measured.stopped_early,
        recommendation=[],
        notes=make_notes(measured),
        strategies=[
            _strategy(measured, each, evidence[measured.name(each)], ratios.get(each)) for each in measured.compared
        ],
        stages=stage_results(measured),
        profile=_profile(measured),
        checks=check_rules(evidence, conditions),
        noise=noise_of(measured),
        timelines=measured.timelines,
        scenarios=make_scenarios(measured),
    )
    return replace(report, recommendation=recommend(report, _ratios_among(measured, report), settings.title))


def _model_of(measured: Measurements) -> str:
    """Return the name of the built-in model for the records of the first strategy of this package; "" without one."""
    layouts = [] if measured.own is None else measured.checks[measured.own].content.layouts
    return default_model(layouts[0][1]) if layouts else ""


def _evidence(measured: Measurements) -> dict[str, Evidence]:
    return {
        measured.name(each): Evidence(
            is_presaved=each.is_presaved,
            is_foreign=each.is_foreign,
            shares_python=measured.name(each) not in measured.work.settings.pythons,
            sameness=measured.sameness(each),
            threads=measured.threads(each),
            check=measured.checks[each],
            samples=measured.samples[each],
            parts=parts_of(measured.samples[each], measured.scale),
            writing=measured.written(each),
        )
        for each in measured.compared
    }


def _strategy(
    measured: Measurements, candidate: Candidate, evidence: Evidence, ratio: Interval | None
) -> StrategyResult:
    scale, reference, threads = measured.scale, measured.compared[0], evidence.threads
    samples = measured.samples[candidate]
    return StrategyResult(
        name=measured.name(candidate),
        strategy=candidate.strategy,
        is_foreign=candidate.is_foreign,
        measured_records=round(statistics.median(sample.epoch.samples for sample in samples.values())),
        sameness=None if candidate == reference else evidence.sameness,
        format=candidate.format,
        stage=candidate.stage,
        compute_threads=threads.compute,
        loading_threads=threads.loading,
        parts=evidence.parts,
        host_wait_seconds=host_wait_seconds(samples, scale),
        first_batch_seconds=mean_of(samples, lambda sample: sample.stalls[0][0]),
        stall_tails=stall_tails_of(samples),
        losses=losses_of(samples, scale),
        etl_alone_seconds=etl_alone_seconds(samples, scale),
        cpu_seconds_per_1000=1000 * mean_of(samples, lambda sample: sample.cpu_seconds / sample.epoch.samples),
        peak_memory_nbytes=evidence.check.peak_memory,
        read_nbytes=round(scale.records * mean_of(samples, lambda sample: sample.read_nbytes / sample.epoch.samples)),
        ratio=ratio,
        presaving=None if evidence.writing is None else presaving_of(evidence.writing, scale),
        runtime=audits_of(samples),
        splits=splits_of(measured, candidate),
        ranks=ranks_of(samples, evidence.check, scale),
        settings=dict(candidate.settings),
        peak_device_memory_nbytes=evidence.check.peak_device_memory,
        rounds=[
            round_metrics(number, sample, measured.places[candidate][number])
            for number, sample in sorted(samples.items())
        ],
    )


def _ratios_among(measured: Measurements, report: Report) -> dict[tuple[str, str], Interval]:
    """Return the ratio of the wall times of any two strategies that broke no rule, by their names.

    Those with the same denominator hold together.
    """
    valid = {each.name for each in report.strategies if not each.disqualified}
    samples = {each: measured.samples[each] for each in measured.compared if measured.name(each) in valid}
    return {
        (measured.name(each), measured.name(below)): ratio
        for below in samples
        for each, ratio in ratios_of(samples, below, measured.scale).items()
    }


def _profile(measured: Measurements) -> ProfileResult:
    profile = measured.profile
    return ProfileResult(
        stages=profile.stages,
        compute_seconds_per_batch=dict(profile.compute_seconds),
        splits=profile.splits,
        copy_bytes_per_second=profile.copy_bytes_per_second,
    )


PACKAGES = ("fair-etl", "numpy", "torch", "h5py", "pillow", "joblib", "numba", "simplejpeg", "opencv-python-headless")


def describe_machine() -> dict[str, Any]:
    """Describe this machine as JSON values. The value `cpus` is the number of CPUs that this process may use."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": available_cpus(),
        "cpus_of_the_machine": psutil.cpu_count() or 1,
        "cpu_quota": cgroup_quota(),
        "frequency_mhz": frequencies(),
        "memory_nbytes": usable_nbytes(),
        "gpus": _gpus(),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect speed.

    The value "instruments" is the digest of `etl.measuring`, which takes the measurements.
    """
    found = {"python": platform.python_version(), "instruments": current_instruments().digest[:12]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Return the names of NVIDIA GPUs, from the driver: to ask torch would take seconds to import it."""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for card in cards for line in card.read_text().splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


# Larger than any rounding error, and less than the digits of a ratio that are shown.
TOLERANCE, RATIO_TOLERANCE = 1e-6, 1e-3


class ContradictionError(RuntimeError):
    """The metrics of a report contradict each other, so it is not published."""


def check_report(report: Report) -> None:
    """Raise `ContradictionError`, which lists all contradictions, if metrics of `report` contradict each other."""
    found = list(contradictions(report))
    if found:
        raise ContradictionError(
            f"the metrics contradict each other, so the report is not published: {'; '.join(found)}"
        )


def contradictions(report: Report) -> Iterator[str]:
    """Yield a description of each contradiction between metrics of the report.

    Only fields are checked: derived values are properties of the report's classes, which cannot contradict the fields.
    """
    names = [each.name for each in report.strategies]
    if len(set(names)) < len(names):
        yield f"two strategies have the same name: {', '.join(names)}"
    if not 0 < report.measured_records <= report.source_records:
        yield f"{report.measured_records} of {report.source_records} records were measured"
    for result in report.strategies:
        for text in (
            *_time_contradictions(result),
            *_round_contradictions(report, result),
            *_ratio_contradictions(report, result),
        ):
            yield f"{result.name}: {text}"
        if not result.is_foreign and (result.presaving is None) != (result.stage is None):
            has = "has no" if result.presaving is None else "has a"
            yield f"{result.name}: it {has} cost of presaving, but its stage is {result.stage!r}"
    for stage in report.stages:
        yield from (f"stage {stage.stage}: {text}" for text in _impossible_times(stage))
    for scenario in report.scenarios:
        for predicted in scenario.strategies:
            yield from (f"{predicted.strategy} if {scenario.what_if}: {text}" for text in _impossible_times(predicted))
    for rule in RULES:
        if rule not in {check.rule for check in report.checks}:
            yield f"rule {rule!r} is not in the report"
    for check in report.checks:
        yield from (f"rule {check.rule!r}: {text}" for text in _check_contradictions(check, names))


def _time_contradictions(result: StrategyResult) -> Iterator[str]:
    parts = (result, result.parts, result.losses, result.presaving)
    for timed in (*parts, *result.splits, *result.rounds):
        if timed is not None:
            yield from _impossible_times(timed)
    losses = result.losses
    if losses.start_up_seconds + (losses.storage_seconds or 0.0) > result.parts.stall_seconds * (1 + TOLERANCE):
        yield "start-up and storage are longer than the stall"
    if (losses.storage_seconds is None) != (losses.storage_method is None):
        yield f"storage is {losses.storage_seconds}, but it was measured by {losses.storage_method}"
    for measured in result.rounds:
        if measured.compute_seconds + measured.stall_seconds > measured.wall_seconds * (1 + TOLERANCE):
            yield f"round {measured.round}: compute and stall are longer than the wall time"


def _impossible_times(metrics: object) -> Iterator[str]:
    """Yield every time that is negative or not a number. Only interference may be negative."""
    for name, seconds in vars(metrics).items():
        lowest = -math.inf if name == "interference_seconds" else 0.0
        if name.endswith("_seconds") and seconds is not None and not lowest <= seconds < math.inf:
            yield f"{name} is {seconds}"


def _round_contradictions(report: Report, result: StrategyResult) -> Iterator[str]:
    numbers = [measured.round for measured in result.rounds]
    if len(set(numbers)) < len(numbers) or not numbers or max(numbers) >= report.rounds:
        yield f"it has rounds {numbers} of {report.rounds}"
    walls = [measured.wall_seconds for measured in result.rounds]
    scaling = _max_scaling(report, result.measured_records)
    if walls and not _between(result.parts.wall_seconds, min(walls) * min(1, scaling), max(walls) * max(1, scaling)):
        yield (
            f"its wall time is {result.parts.wall_seconds} s for {report.source_records} records, but {min(walls)} to "
            f"{max(walls)} s for {result.measured_records} in single rounds"
        )


def _ratio_contradictions(report: Report, result: StrategyResult) -> Iterator[str]:
    ratio, reference = result.ratio, report.strategies[0]
    if (ratio is None) != (result.name == reference.name):
        yield f"it has {'no' if ratio is None else 'a'} ratio, but the reference is {reference.name}"
    if ratio is None:
        return
    if ratio.low is not None and ratio.high is not None and not ratio.low <= ratio.estimate <= ratio.high:
        yield f"the ratio {ratio.estimate} is outside its interval {ratio.low} to {ratio.high}"
    walls = {measured.round: measured.wall_seconds for measured in reference.rounds}
    paired = [each.wall_seconds / walls[each.round] for each in result.rounds if each.round in walls]
    if len(paired) != ratio.count:
        yield f"its ratio has {ratio.count} rounds, but {len(paired)} were measured together with {reference.name}"
        return
    # The times of both are scaled to the whole source, from different numbers of records.
    scalings = [_max_scaling(report, each.measured_records) for each in (result, reference)]
    scaled = max(*scalings, *(1 / each for each in scalings))
    if not _between(ratio.estimate, min(paired) / scaled, max(paired) * scaled):
        in_rounds = f"it took {min(paired)} to {max(paired)} of {reference.name}'s time in single rounds"
        yield f"{in_rounds}, not {ratio.estimate}"
    quotient = result.parts.wall_seconds / reference.parts.wall_seconds
    if not math.isclose(ratio.estimate, quotient, rel_tol=RATIO_TOLERANCE):
        yield f"its ratio is {ratio.estimate}, but its wall time is {quotient} times that of {reference.name}"


def _check_contradictions(check: Check, names: list[str]) -> Iterator[str]:
    if check.broken_by and check.held is not False:
        yield f"it was broken by {', '.join(check.broken_by)}, but held is {check.held}"
    yield from (f"it was broken by {name}, which is not a strategy" for name in check.broken_by if name not in names)


def _max_scaling(report: Report, measured_records: int) -> float:
    """Return the largest possible ratio of the time of an epoch to the time of `measured_records`.

    The ratio is largest if the first batch takes no time, so that all time is scaled with the number of batches. It is
    below 1 if more records were measured than the source has.
    """
    step_records = report.batch_size * int(report.settings.get("ranks", 1))
    size = max(1, min(step_records, measured_records))
    measured_batches, batches = measured_records / size, report.source_records / size
    return batches if measured_batches <= 1 else (batches - 1) / (measured_batches - 1)


def _between(value: float, low: float, high: float) -> bool:
    return low * (1 - TOLERANCE) <= value <= high * (1 + TOLERANCE)
