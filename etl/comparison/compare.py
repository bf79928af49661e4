"""`compare`: a comparison from beginning to end."""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from etl.comparison.candidate import Candidate
from etl.comparison.contradictions import check_report
from etl.comparison.make_report import make_report
from etl.comparison.measured import Measured
from etl.comparison.plan import choose_records
from etl.comparison.prediction import predict_wall
from etl.comparison.processes import Processes
from etl.comparison.report import Report, Timeline
from etl.comparison.rounds import ComparisonRounds
from etl.comparison.rules import RULES
from etl.comparison.samples import Checked, Profile, Spans, Written
from etl.comparison.settings import Settings
from etl.comparison.splits import SplitSeconds, choose
from etl.comparison.threads import Threads
from etl.comparison.workload import Workload
from etl.measuring.processes import MeasurementError
from etl.runtime.resources import affinity_of, available_cpus

# What the last phases need after the rounds.
CLOSING_SECONDS = 3.0
# Trials of how those that load ahead split their CPUs take this share of the time budget, all together.
TRIALS_SHARE = 0.2
# A comparison without intervals tells nothing: for them it may take so many times as long as it was to.
PATIENCE = 1.5


@dataclass
class Progress:
    """How far a comparison has come. `phase` is "profile", "write", "split", "check", "measure" or "trace"; `done` of
    `total` steps of it, `total` None where that is not known; `share` of the time budget that has gone, None without
    one. `predictions` are the wall times of an epoch that were foretold, by strategy, as soon as there are any.
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
        names = [workload.name(each) for each in self._candidates]
        if len(set(names)) < len(names):
            raise ValueError(f"--strategies: two of {', '.join(names)} would be called the same; name one otherwise")
        self._extras = [each for each in workload.stage_candidates() if each not in self._candidates]
        self._memory = self._settings.memory_nbytes or psutil.virtual_memory().available
        self._writing: dict[tuple[str, str], Written] = {}
        self._checks: dict[Candidate, Checked] = {}
        self._failed: dict[Candidate, str] = {}
        self._trials: dict[Candidate, SplitSeconds] = {}
        self._profile: Profile

    def run(self) -> Report:
        with Processes(self._workload, self._affinity) as processes:
            self._progress("profile", 0, 1)
            self._profile = processes.profile()
            compute_seconds = self._profile.compute_seconds
            self._workload.plain_compute = int(min(compute_seconds, key=compute_seconds.__getitem__))
            left = self._settings.budget_seconds - (time.monotonic() - self._began) - CLOSING_SECONDS
            left -= self._trial_seconds() * len(self._with_splits())
            self._workload.select(choose_records(self._workload, self._profile, left))
            self._write_stores(processes)
            # Of every split, before any is tried.
            predicted = {each: self._predict(each) for each in self._candidates}
            self._try_splits(processes)
            self._predictions = {
                self._workload.name(each): splits[self._threads(each)] for each, splits in predicted.items()
            }
            self._check(processes)
            rounds = self._measure(processes)
            timelines = self._trace(processes, rounds)
        measured = Measured(
            workload=self._workload,
            started_at=self._started_at.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._began,
            affinity=self._affinity,
            memory_nbytes=self._memory,
            profile=self._profile,
            predictions=self._predictions,
            trials=self._trials,
            writing=self._writing,
            checks=self._checks,
            failed=self._failed,
            samples=rounds.samples,
            loads=rounds.loads,
            rounds=rounds.done,
            stopped_early=rounds.stopped_early,
            no_server=rounds.no_server,
            timelines=timelines,
        )
        report = make_report(measured)
        check_report(report)
        return report

    def _write_stores(self, processes: Processes) -> None:
        wanted = dict.fromkeys(
            (str(each.format), str(each.stage)) for each in (*self._candidates, *self._extras) if each.is_presaved
        )
        for number, (chosen, stage) in enumerate(wanted):
            self._progress("write", number, len(wanted))
            self._writing[chosen, stage] = processes.write(chosen, stage, self._workload.cpus)

    def _predict(self, candidate: Candidate) -> dict[Threads, float]:
        return {
            split: predict_wall(self._workload, candidate, split, self._profile)
            for split in self._workload.splits(candidate, self._profile.is_on_device)
        }

    def _try_splits(self, processes: Processes) -> None:
        """Have each that loads ahead keep the split that is its fastest in short trials, each for itself. The rounds
        measure it anew.
        """
        chosen = self._with_splits()
        for number, candidate in enumerate(chosen):
            self._progress("split", number, len(chosen))
            try:
                self._trials[candidate] = processes.try_splits(candidate, self._trial_seconds())
            except MeasurementError as error:
                self._failed[candidate] = f"other splits of its CPUs could not be tried: {error}"
                continue
            fastest = choose(self._trials[candidate])
            if fastest is not None:
                self._workload.chosen[candidate] = fastest

    def _with_splits(self) -> list[Candidate]:
        """Return the candidates that have more than one way to split their CPUs."""
        return [each for each in self._candidates if len(self._workload.splits(each, self._profile.is_on_device)) > 1]

    def _trial_seconds(self) -> float:
        return self._settings.budget_seconds * TRIALS_SHARE / max(1, len(self._with_splits()))

    def _check(self, processes: Processes) -> None:
        """See what each loads, and train on it for a few steps, before anything is timed."""
        compute_threads = min(self._threads(each).compute for each in self._candidates)
        for number, candidate in enumerate((*self._candidates, *self._extras)):
            self._progress("check", number, len(self._candidates) + len(self._extras))
            trains = candidate in self._candidates
            try:
                self._checks[candidate] = processes.check(candidate, compute_threads, trains)
            except MeasurementError as error:
                self._failed[candidate] = str(error)
        if not any(each in self._checks for each in self._candidates):
            name, reason = next(iter(self._failed.items()))
            raise MeasurementError(f"no strategy could be run; {self._workload.name(name)}: {reason}", reason)

    def _measure(self, processes: Processes) -> ComparisonRounds:
        def show(done: int) -> None:
            self._progress("measure", done, self._settings.rounds)

        show(0)
        rounds = ComparisonRounds(
            [each for each in self._candidates if each in self._checks],
            [each for each in self._extras if each in self._checks],
            processes,
            rounds=self._settings.rounds,
            deadline=self._began + self._settings.budget_seconds - CLOSING_SECONDS,
            latest=self._began + self._settings.budget_seconds * PATIENCE,
            seed=self._settings.seed,
            progress=show,
        )
        rounds.run()
        self._failed |= rounds.failed
        return rounds

    def _trace(self, processes: Processes, rounds: ComparisonRounds) -> list[Timeline]:
        """Of those that load ahead in threads what each thread did, in a run of its own; of the others, what the loop
        did in the first round.
        """
        timelines: list[Timeline] = []
        samples = rounds.samples
        chosen = [each for each in self._candidates if each in samples]
        for number, candidate in enumerate(chosen):
            self._progress("trace", number, len(chosen))
            spans: Spans = samples[candidate][0].timeline
            try:
                if not rounds.stopped_early and candidate.is_ahead and not candidate.worker_processes:
                    spans = processes.timeline(candidate)
            except KeyboardInterrupt:
                rounds.stopped_early = True
            except MeasurementError as error:
                self._failed[candidate] = f"its timeline could not be taken: {error}"
            timelines.append(Timeline(self._workload.name(candidate), spans.waits, spans.computes, spans.loads))
        return timelines

    def _threads(self, candidate: Candidate) -> Threads:
        return self._workload.threads(candidate, self._profile.is_on_device)

    def _progress(self, phase: str, done: int, total: int | None) -> None:
        share = None
        if self._settings.rounds is None:
            share = min(1.0, (time.monotonic() - self._began) / self._settings.budget_seconds)
        self._show(Progress(phase, done, total, share, self._predictions))
