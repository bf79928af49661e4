"""Costs of each strategy from the measurements of a comparison, and what they would come to in each scenario."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

from etl.comparison.judge.prediction import Slowdowns, stage_seconds
from etl.comparison.judge.report import Scenario, ScenarioResult
from etl.comparison.judge.results import Measurements, mean_of, parts_of
from etl.comparison.judge.what_if import (
    ONE_CPU,
    LoadingCosts,
    adjusted,
    changed,
    contention_of,
    extrapolated,
    fewest_cpus,
    outcome,
    unknown_reason,
    why_never_used,
)
from etl.comparison.request.answers import PipelineProfile
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.scenario import WhatIf
from etl.measuring.clock import Split
from etl.measuring.sample import Sample

UNKNOWN_LOADER = "its loader is unknown"
SEVERAL_RANKS = "several ranks share the CPUs"
NO_LOADING = "loading alone was not measured"


def make_scenarios(measured: Measurements) -> list[Scenario]:
    """Return the scenarios of the settings, each with the prediction for every strategy."""
    given = measured.work.settings.what_if
    known = {each: measured_costs(measured, each) for each in measured.compared} if given else {}
    return [
        Scenario(each.text, [_predict(measured.name(one), costs, each) for one, costs in known.items()])
        for each in map(WhatIf.parse, given)
    ]


def _predict(name: str, costs: LoadingCosts | str, scenario: WhatIf) -> ScenarioResult:
    if isinstance(costs, str):
        return ScenarioResult(name, None, None, None, None, costs)
    after = changed(costs, scenario)
    if unknown := unknown_reason(after, scenario.cpus):
        return ScenarioResult(name, None, None, None, None, unknown)
    found = outcome(after, scenario.cpus)
    fewest = fewest_cpus(after)
    reasons = extrapolated(costs, scenario)
    return ScenarioResult(
        strategy=name,
        wall_seconds=found.wall_seconds,
        stall_seconds=found.stall_seconds,
        accelerator_utilisation=found.accelerator_utilisation,
        cpus_for_utilisation=fewest,
        reason=why_never_used(after) if fewest is None else "",
        extrapolated=reasons,
        cpus_extrapolated=fewest is not None
        and (fewest > costs.cpus or bool(extrapolated(costs, replace(scenario, cpus=None)))),
    )


def measured_costs(measured: Measurements, candidate: Candidate) -> LoadingCosts | str:
    """Return the costs of `candidate`, or why they are unknown."""
    settings, samples, scale = measured.work.settings, measured.samples[candidate], measured.scale
    if candidate.is_foreign:
        return UNKNOWN_LOADER
    if settings.ranks > 1:
        return SEVERAL_RANKS
    alone = _loading_alone(samples)
    if not alone:
        return NO_LOADING
    threads, cpus = measured.threads(candidate), len(measured.affinity)
    is_ahead = threads.loading > 0
    load = statistics.median(_seconds_per_batch(*each) for each in alone)
    start_up = alone[0][0].epoch.start_up
    first = statistics.median(split.first for _, split in alone)
    cpu_seconds = statistics.median((each.etl_cpu_seconds or 0.0) / each.epoch.batches for each, _ in alone)
    parts = parts_of(samples, scale)
    one_cpu = measured.profile.on_one_cpu
    disk = 0.0
    if settings.cache == "cold":
        cached = [(each, each.cached_alone) for each, _ in alone if each.cached_alone is not None]
        warm = statistics.median(_seconds_per_batch(each, one.seconds) for each, one in cached)
        # The rest is waiting for the disk, which threads share until the disk is always busy.
        disk = min(max(0.0, max(1, threads.loading) * (load - warm)), load)
        load = min(load, warm)
        cpu_seconds = statistics.median(one.cpu_seconds / each.epoch.batches for each, one in cached)
    # A worker process that is still starting takes CPU time that does not load.
    cpu_seconds = min(cpu_seconds, max(1, threads.loading) * load)
    one_thread = _with_one_thread(measured, candidate, load, cpu_seconds)
    costs = LoadingCosts(
        batches=scale.batches,
        cpus=cpus,
        is_ahead=is_ahead,
        threads=threads,
        load_seconds=load,
        start_seconds=max(0.0, first - start_up * (load + disk)),
        one_thread_seconds=one_thread,
        contention=_profiled_contention(measured.profile)
        if threads.loading == 1
        else contention_of(threads.loading, load, one_thread),
        cpu_seconds=cpu_seconds,
        disk_seconds=disk,
        nbytes=_nbytes(measured, candidate) / scale.batches,
        compute_seconds=_compute_seconds(measured, candidate, threads),
        is_on_device=measured.profile.device != "cpu",
        waits_for_steps=settings.waits_for_steps,
        apart=_slowdowns(measured, lambda each: each.compute + each.loading <= cpus, (1.0, 1.0)),
        on_one_cpu=ONE_CPU if one_cpu is None else (one_cpu.loading_slowdown, one_cpu.compute_slowdown),
        shared=_slowdowns(measured, lambda each: each.compute + each.loading > cpus, (2.0, 2.0)),
        harness_seconds=parts.harness_seconds / scale.batches,
    )
    return adjusted(costs, parts.wall_seconds)


def _loading_alone(samples: Mapping[int, Sample]) -> list[tuple[Sample, Split]]:
    """Return the samples of the rounds in which loading alone was measured, with its times."""
    return [(each, each.etl_alone) for each in samples.values() if each.etl_alone is not None]


def _seconds_per_batch(sample: Sample, split: Split) -> float:
    """Return the seconds of loading alone per batch, without the start-up unless there is nothing else."""
    batches, start_up = sample.epoch.batches, sample.epoch.start_up
    return split.rest / (batches - start_up) if batches > start_up else split.total / batches


def _with_one_thread(measured: Measurements, candidate: Candidate, load: float, cpu_seconds: float) -> float:
    """Return the seconds in which one thread loads a batch, which all threads load in `load`, without any disk wait."""
    threads = measured.threads(candidate)
    if threads.loading <= 1:
        return load
    if measured.work.settings.cache == "cold":
        return max(load, min(cpu_seconds, threads.loading * load))
    for plain in measured.compared:
        if _reads_the_same(plain, candidate) and measured.threads(plain).loading <= 1:
            alone = _loading_alone(measured.samples[plain])
            if alone:
                return max(load, statistics.median(_seconds_per_batch(*each) for each in alone))
    split = None if candidate.is_presaved else measured.profile.split(threads)
    if split is not None:  # taken in turns, so that the speed of the machine cancels out
        return max(load, load * split.records_per_second * stage_seconds(measured.profile))
    return max(load, min(cpu_seconds, threads.loading * load))


def _profiled_contention(profile: PipelineProfile) -> float:
    """Return the contention of the raw pipeline with the most threads that were profiled; 0 if there was only one."""
    most = max(profile.splits, key=lambda each: each.loading_threads, default=None)
    if most is None:
        return 0.0
    return max(0.0, contention_of(most.loading_threads, 1 / most.records_per_second, stage_seconds(profile)))


def _reads_the_same(candidate: Candidate, other: Candidate) -> bool:
    if candidate.is_foreign or other.is_foreign:
        return False
    return (candidate.format, candidate.stage) == (other.format, other.stage)


def _nbytes(measured: Measurements, candidate: Candidate) -> float:
    """Return the bytes that an epoch reads from files; worker processes also read programs when they start."""
    samples = [measured.samples[each] for each in measured.compared if _reads_the_same(each, candidate)]
    return measured.scale.records * min(
        mean_of(each, lambda sample: sample.read_nbytes / sample.epoch.samples) for each in samples
    )


def _compute_seconds(measured: Measurements, candidate: Candidate, threads: CpuSplit) -> dict[int, float]:
    """Return compute alone by number of threads, at the speed of the machine during the rounds."""
    alone = mean_of(measured.samples[candidate], lambda sample: sample.compute_alone)
    profiled = {int(count): seconds for count, seconds in measured.profile.compute_seconds.items()}
    if measured.profile.device != "cpu" or threads.compute not in profiled:
        return {threads.compute: alone}
    speed = alone / profiled[threads.compute]
    return {count: speed * seconds for count, seconds in profiled.items()}


def _slowdowns(measured: Measurements, is_kind: Callable[[CpuSplit], bool], unknown: Slowdowns) -> Slowdowns:
    """Return how much loading and compute slow each other down with the first split of a kind; `unknown` if none is."""
    for each in measured.profile.splits:
        if is_kind(CpuSplit(each.compute_threads, each.loading_threads)):
            return each.loading_slowdown, each.compute_slowdown
    return unknown
