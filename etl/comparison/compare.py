"""`compare`: a comparison from beginning to end."""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from etl.comparison.candidate import Candidate
from etl.comparison.contradictions import check_report
from etl.comparison.machine import describe_machine, describe_versions
from etl.comparison.noise_report import report_noise
from etl.comparison.plan import choose_records
from etl.comparison.prediction import predict_wall
from etl.comparison.processes import MeasurementError, Processes
from etl.comparison.recommendation import recommend
from etl.comparison.report import (
    SCHEMA_VERSION,
    Check,
    Prediction,
    ProfileResult,
    Report,
    StageProfile,
    StageResult,
    StrategyResult,
    Timeline,
)
from etl.comparison.results import (
    Scale,
    break_even_epochs,
    etl_alone_seconds,
    middle,
    parts_of,
    presaving_of,
    ratio_of,
    round_figures,
)
from etl.comparison.rounds import Rounds
from etl.comparison.rules import RULES, Evidence, Terms, check_rules, different_batches
from etl.comparison.settings import Settings
from etl.comparison.statistics import verdict
from etl.comparison.workload import Threads, Workload
from etl.runtime.cpus import affinity_of, available_cpus

# What the last phases need after the rounds.
CLOSING_SECONDS = 3.0


@dataclass
class Progress:
    """How far a comparison has come. `phase` is "profile", "write", "check", "measure" or "trace"; `done` of `total`
    steps of it, `total` None where that is not known; `share` of the time budget that has gone, None without one.
    `predictions` are the wall times of an epoch that were foretold, by strategy, as soon as there are any.
    """

    phase: str
    done: int
    total: int | None
    share: float | None
    predictions: Mapping[str, float] = field(default_factory=dict)


def compare(settings: Settings, progress: Callable[[Progress], None] | None = None) -> Report:
    """Compare the strategies of `settings` on its source.

    Raises `ValueError` for what the caller can mend (the source, a record, the model, a setting), `MeasurementError`
    where a strategy cannot be measured at all, and `ContradictionError` where the figures contradict each other.
    Interrupted after a whole round, it reports what it has.
    """
    unknown = sorted(set(settings.unchecked) - set(RULES))
    if unknown:
        raise ValueError(f"--no-check: unknown rule {', '.join(unknown)}; the rules are {', '.join(RULES)}")
    cpus = available_cpus()
    wanted = cpus if settings.threads is None else settings.threads
    if wanted > cpus:
        raise ValueError(f"--threads {wanted}: this process may use {cpus} CPUs")
    with tempfile.TemporaryDirectory(prefix="etl-compare-") as folder:
        workload = Workload(settings, Path(folder), wanted)
        return _Comparison(workload, affinity_of(wanted), progress or _no_progress).run()


def _no_progress(progress: Progress) -> None:
    pass


class _Comparison:
    """One comparison; its phases in the order in which they happen."""

    def __init__(self, workload: Workload, affinity: list[int], progress: Callable[[Progress], None]) -> None:
        self._workload = workload
        self._settings = workload.settings
        self._affinity = affinity
        self._show = progress
        self._predictions: dict[str, float] = {}
        self._began = time.monotonic()
        self._started_at = datetime.datetime.now(datetime.timezone.utc)
        self._candidates = workload.candidates()
        self._extras = [each for each in workload.stage_candidates() if each not in self._candidates]
        self._memory = self._settings.memory_nbytes or psutil.virtual_memory().available
        self._writing: dict[tuple[str, str], dict[str, Any]] = {}
        self._checks: dict[Candidate, dict[str, Any]] = {}
        self._disqualified: dict[Candidate, str] = {}
        self._profile: dict[str, Any] = {}
        self._is_on_device = False

    def run(self) -> Report:
        with Processes(self._workload, self._affinity) as processes:
            self._progress("profile", 0, 1)
            self._profile = processes.profile()
            self._is_on_device = self._profile["device"] not in ("cpu", "none")
            compute_seconds = self._profile["compute_seconds"]
            self._workload.plain_compute = int(min(compute_seconds, key=compute_seconds.__getitem__))
            left = self._settings.budget_seconds - (time.monotonic() - self._began) - CLOSING_SECONDS
            self._workload.select(choose_records(self._workload, self._profile, self._is_on_device, left))
            self._write_stores(processes)
            self._predict()
            self._check(processes)
            rounds = self._measure(processes)
            timelines = self._trace(processes, rounds)
        report = self._report(rounds, timelines)
        check_report(report)
        return report

    def _write_stores(self, processes: Processes) -> None:
        wanted = dict.fromkeys(
            (str(each.format), str(each.stage)) for each in (*self._candidates, *self._extras) if each.is_presaved
        )
        for number, (format, stage) in enumerate(wanted):
            self._progress("write", number, len(wanted))
            self._writing[format, stage] = processes.write(format, stage, self._workload.cpus)

    def _predict(self) -> None:
        for candidate in self._candidates:
            self._predictions[self._workload.name(candidate)] = predict_wall(
                self._workload, candidate, self._threads(candidate), self._profile
            )

    def _check(self, processes: Processes) -> None:
        """See what each loads, and train on it for a few steps, before anything is timed."""
        compute_threads = min(self._threads(each).compute for each in self._candidates)
        for number, candidate in enumerate((*self._candidates, *self._extras)):
            self._progress("check", number, len(self._candidates) + len(self._extras))
            trains = candidate in self._candidates
            try:
                self._checks[candidate] = processes.check(candidate, compute_threads, trains)
            except MeasurementError as error:
                self._disqualified[candidate] = str(error)
        if not any(each in self._checks for each in self._candidates):
            name, reason = next(iter(self._disqualified.items()))
            raise MeasurementError(f"no strategy could be run; {self._workload.name(name)}: {reason}", reason)

    def _measure(self, processes: Processes) -> Rounds:
        def measure(candidate: Candidate, with_etl_alone: bool) -> dict[str, Any]:
            return processes.measure(candidate, with_etl_alone)

        def show(done: int, total: int | None) -> None:
            self._progress("measure", done, total)

        self._progress("measure", 0, self._settings.rounds)
        rounds = Rounds(
            [each for each in self._candidates if each in self._checks],
            [each for each in self._extras if each in self._checks],
            measure,
            rounds=self._settings.rounds,
            deadline=self._began + self._settings.budget_seconds - CLOSING_SECONDS,
            seed=self._settings.seed,
            progress=show,
        )
        rounds.run()
        return rounds

    def _trace(self, processes: Processes, rounds: Rounds) -> list[Timeline]:
        timelines: list[Timeline] = []
        if rounds.stopped_early:
            return timelines
        chosen = [each for each in self._candidates if each in self._checks]
        for number, candidate in enumerate(chosen):
            self._progress("trace", number, len(chosen))
            try:
                traced = processes.timeline(candidate)
            except KeyboardInterrupt:
                break
            timelines.append(
                Timeline(
                    self._workload.name(candidate),
                    [tuple(each) for each in traced["waits"]],
                    [tuple(each) for each in traced["computes"]],
                    [tuple(each) for each in traced["loads"]],
                )
            )
        return timelines

    def _report(self, rounds: Rounds, timelines: list[Timeline]) -> Report:
        workload, settings = self._workload, self._settings
        measured = [each for each in self._candidates if rounds.samples.get(each)]
        scale = Scale(len(workload.whole), len(workload.records), settings.batch_size)
        evidence = {
            workload.name(each): Evidence(
                is_presaved=each.is_presaved,
                threads=self._threads(each),
                check=self._checks[each],
                samples=rounds.samples[each],
                parts=parts_of(rounds.samples[each], scale),
                writing=self._writing.get((str(each.format), str(each.stage))),
            )
            for each in measured
        }
        terms = Terms(
            affinity=self._affinity,
            memory_nbytes=self._memory,
            cache=settings.cache,
            simulated_seconds=settings.simulated_seconds,
            rounds=rounds.done,
            unchecked=settings.unchecked,
        )
        checks = check_rules(evidence, terms)
        reference = measured[0]
        strategies = self._strategies(measured, rounds, evidence, checks, scale)
        valid = [each for each in strategies if not each.disqualified]
        fastest = min(valid, key=lambda each: each.parts.wall_seconds, default=None)
        to_fastest = {}
        if fastest is not None:
            below = next(each for each in measured if workload.name(each) == fastest.name)
            to_fastest = {
                workload.name(each): ratio_of(rounds.samples[each], rounds.samples[below], scale) for each in measured
            }
        source = f"{len(workload.whole):,} records"
        every_sample = [sample for samples in rounds.samples.values() for sample in samples.values()]
        return Report(
            schema_version=SCHEMA_VERSION,
            title=f"{settings.source}: {len(workload.whole):,} records, batches of {settings.batch_size}",
            settings={**settings.as_dict(), "threads": workload.cpus, "until": workload.cut, "model": self._model_name()},
            machine=describe_machine(),
            versions=describe_versions(),
            started_at=self._started_at.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._began,
            source_records=len(workload.whole),
            measured_records=len(workload.records),
            batch_size=settings.batch_size,
            reference=workload.name(reference),
            rounds=rounds.done,
            stopped_early=rounds.stopped_early,
            unchecked=list(settings.unchecked),
            recommendation=recommend(strategies, to_fastest, workload.name(reference), source),
            notes=self._notes(rounds, scale),
            strategies=strategies,
            stages=self._stages(rounds, strategies, scale),
            profile=self._profile_result(),
            checks=checks,
            noise=report_noise(every_sample),
            timelines=timelines,
        )

    def _strategies(
        self,
        measured: list[Candidate],
        rounds: Rounds,
        evidence: Mapping[str, Evidence],
        checks: list[Check],
        scale: Scale,
    ) -> list[StrategyResult]:
        workload = self._workload
        broken = {
            name: [f"{check.rule}: {check.broken_by[name]}" for check in checks if name in check.broken_by]
            for name in evidence
        }
        without_store = min(
            (evidence[name].parts.wall_seconds for name in evidence if not evidence[name].is_presaved and not broken[name]),
            default=None,
        )
        results = []
        for candidate in measured:
            name, samples = workload.name(candidate), rounds.samples[candidate]
            parts = evidence[name].parts
            etl_alone = etl_alone_seconds(samples, scale)
            ratio = None if candidate == measured[0] else ratio_of(samples, rounds.samples[measured[0]], scale)
            writing = evidence[name].writing
            predicted = self._predictions[name]
            results.append(
                StrategyResult(
                    name=name,
                    strategy=candidate.strategy,
                    format=candidate.format,
                    stage=candidate.stage,
                    compute_threads=self._threads(candidate).compute,
                    loading_threads=self._threads(candidate).loading,
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
                    presaving=None
                    if writing is None
                    else presaving_of(writing, parts.wall_seconds, without_store, scale),
                    prediction=Prediction(predicted, predicted / parts.wall_seconds - 1),
                    rounds=[round_figures(number, sample) for number, sample in sorted(samples.items())],
                    disqualified=broken[name],
                )
            )
        return results

    def _stages(self, rounds: Rounds, strategies: list[StrategyResult], scale: Scale) -> list[StageResult]:
        """No store, and one cut after each stage: loaded ahead where a strategy is that."""
        workload = self._workload
        cuts = [each for each in workload.stage_candidates() if rounds.samples.get(each)]
        if not cuts:
            return []
        plain = [each for each in self._candidates if not each.is_presaved and rounds.samples.get(each)]
        same_way = [each for each in plain if each.is_ahead == cuts[0].is_ahead and not each.worker_processes]
        raw = (same_way or plain or [None])[0]
        first = rounds.samples[raw if raw is not None else cuts[0]]
        without_store = min(
            (each.parts.wall_seconds for each in strategies if each.stage is None and not each.disqualified), default=None
        )
        results = []
        for candidate in ([raw] if raw is not None else []) + cuts:
            samples = rounds.samples[candidate]
            wall = parts_of(samples, scale).wall_seconds
            etl_alone = etl_alone_seconds(samples, scale)
            writing = self._writing.get((str(candidate.format), str(candidate.stage)), {"seconds": 0.0, "nbytes": 0})
            write_seconds = scale.amount(float(writing["seconds"]))
            results.append(
                StageResult(
                    stage=candidate.stage or "raw",
                    strategy=candidate.strategy,
                    format=candidate.format,
                    write_seconds=write_seconds,
                    nbytes=round(scale.amount(float(writing["nbytes"]))),
                    etl_alone_seconds=etl_alone,
                    etl_samples_per_second=scale.records / etl_alone,
                    wall_seconds=wall,
                    ratio=None if candidate == raw else ratio_of(samples, first, scale),
                    break_even_epochs=None
                    if candidate.stage is None
                    else break_even_epochs(write_seconds, wall, without_store),
                    disqualified=self._stage_faults(candidate),
                )
            )
        return results

    def _stage_faults(self, candidate: Candidate) -> list[str]:
        first = next(each for each in self._candidates if each in self._checks)
        if "samples" in self._settings.unchecked:
            return []
        found = different_batches(
            self._checks[candidate]["digests"], self._checks[first]["digests"], self._workload.name(first)
        )
        return [] if found is None else [found]

    def _profile_result(self) -> ProfileResult:
        return ProfileResult(
            stages=[StageProfile(**stage) for stage in self._profile["stages"]],
            compute_seconds_per_batch=self._profile["compute_seconds"],
            compute_slowdown=self._profile["compute_slowdown"],
            loading_slowdown=self._profile["loading_slowdown"],
            copy_bytes_per_second=self._profile["copy_bytes_per_second"],
        )

    def _notes(self, rounds: Rounds, scale: Scale) -> list[str]:
        notes = [
            f"{self._workload.name(each)} could not be run: {reason}" for each, reason in self._disqualified.items()
        ]
        if scale.measured < scale.records:
            notes.append(
                f"Measured on {scale.measured:,} of {scale.records:,} records, chosen at random, and scaled: the first "
                "batch once, the others by their number."
            )
        stored = [
            (each, round(scale.amount(float(self._writing[str(each.format), str(each.stage)]["nbytes"]))))
            for each in self._candidates
            if each.is_presaved
        ]
        memory = psutil.virtual_memory().total
        notes += [
            f"The store of {self._workload.name(each)} would be {nbytes / 1e9:,.1f} GB, and this machine has "
            f"{memory / 1e9:,.1f} GB of memory: of the whole source, epochs would wait for the disk; see --cache cold."
            for each, nbytes in stored
            if nbytes > memory / 2 and self._settings.cache == "warm"
        ]
        return notes

    def _model_name(self) -> str | None:
        if self._settings.simulated_seconds is not None:
            return None
        return self._settings.model or str(self._profile["model"])

    def _threads(self, candidate: Candidate) -> Threads:
        return self._workload.threads(candidate, self._is_on_device)

    def _progress(self, phase: str, done: int, total: int | None) -> None:
        share = None
        if self._settings.rounds is None:
            share = min(1.0, (time.monotonic() - self._began) / self._settings.budget_seconds)
        self._show(Progress(phase, done, total, share, self._predictions))
