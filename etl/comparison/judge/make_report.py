"""The report, made from measurements and facts about the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from etl.comparison.judge.costs import make_scenarios
from etl.comparison.judge.recommendation import make_notes, recommend
from etl.comparison.judge.report import SCHEMA_VERSION, ProfileResult, ReportData, StrategyResult
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
from etl.comparison.judge.rules import Evidence, FairnessConditions, check_rules
from etl.comparison.request.candidates import Candidate
from etl.images import jpeg_crop
from etl.measuring.instruments import current_instruments
from etl.measuring.noise import frequencies
from etl.measuring.statistics import Interval
from etl.runtime.resources import available_cpus, cgroup_quota, usable_nbytes
from etl.training.compute import default_model


def make_report(measured: Measurements) -> ReportData:
    """Make the report of `measured`, which must have samples of at least one candidate."""
    work, settings, profile = measured.work, measured.work.settings, measured.profile
    evidence = _evidence(measured)
    conditions = FairnessConditions(
        settings,
        measured.affinity,
        measured.memory_nbytes,
        measured.rounds,
        randomness=measured.randomness,
        retaken=len(measured.retaken),
    )
    on_ranks = f" on each of {settings.ranks} ranks" if settings.ranks > 1 else ""
    runs_model = settings.simulated_seconds is None and settings.step is None
    model = (settings.model or _model_of(measured)) if runs_model else None
    ratios = ratios_of(measured.samples, measured.compared[0], measured.scale)
    report = ReportData(
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
        profile=ProfileResult(
            profile.stages, dict(profile.compute_seconds), profile.splits, profile.copy_bytes_per_second
        ),
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
            writing=measured.written.get(each),
            has_unknown_files=each in measured.work.unknown_files,
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
        first_batch_seconds=mean_of(samples, lambda sample: sample.first_stall),
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


def _ratios_among(measured: Measurements, report: ReportData) -> dict[tuple[str, str], Interval]:
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
        "kernel": _kernel_settings(),
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
    if "simplejpeg" in found and jpeg_crop.find_library() is not None:
        found["turbojpeg"] = "3 or later"
    return found


def _processor() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _kernel_settings() -> dict[str, str]:
    """Return settings of the kernel that affect speed, as far as it shows them."""
    files = {
        "transparent_huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled"),
        "governor": Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }
    found = {name: text for name, path in files.items() if (text := _read(path).strip())}
    vulnerabilities = {each.name: each for each in Path("/sys/devices/system/cpu/vulnerabilities").glob("*")}
    mitigated = {name for name, path in vulnerabilities.items() if _read(path).startswith("Mitigation")}
    return {**found, "mitigations": ", ".join(sorted(mitigated))}


def _gpus() -> list[str]:
    """Return the names of NVIDIA GPUs, from the driver: to ask torch would take seconds to import it."""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for card in cards for line in _read(card).splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; nothing if it is not there, or hidden as in some containers."""
    try:
        return path.read_text()
    except OSError:
        return ""
