"""A comparison from beginning to end, phase by phase."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import replace

from etl.comparison.candidates import Candidate, Threads
from etl.comparison.prediction import choose_records, predict_wall
from etl.comparison.preparation import Preparation, opened_workload
from etl.comparison.processes import Processes
from etl.comparison.progress import ComparisonProgress
from etl.comparison.publishing import check_report, make_report
from etl.comparison.report import Report, Timeline, TuningResult
from etl.comparison.results import Measurements
from etl.comparison.rounds import ComparisonRounds
from etl.comparison.rules import RULES
from etl.comparison.samples import CheckedEpoch, Profile, Spans
from etl.comparison.settings import Settings
from etl.comparison.subset import ForeignSource
from etl.comparison.trials import SplitSeconds, choose_split
from etl.comparison.tuning.results import TunedStrategy
from etl.comparison.tuning.tuner import run_tuning, tuned_settings
from etl.comparison.workload import Workload
from etl.measuring.processes import MeasurementError
from etl.runtime.resources import available_nbytes

# Seconds of the time budget that are kept for the phases after the rounds.
CLOSING_SECONDS = 3.0
# Share of the time budget for all trials of CPU splits together.
TRIALS_SHARE = 0.2
# A comparison without intervals shows no difference, so it may take this many times its budget to get them.
MAX_OVERRUN = 1.5


def run_comparison(settings: Settings, progress: Callable[[ComparisonProgress], None] | None = None) -> Report:
    """Compare the strategies of `settings` on their source, and return the report.

    With `settings.tune_seconds`, each strategy is tuned first, and compared in its best configuration.

    After an interruption, the report has the complete rounds so far; if there are none, `KeyboardInterrupt` is raised.

    Parameters
    ----------
    settings : Settings
        Settings of the comparison.
    progress : callable, optional
        Called with the progress after every step.

    Raises
    ------
    ValueError
        If the input is wrong: the source, a record, the model or a setting.
    MeasurementError
        If no strategy can be measured.
    ContradictionError
        If the metrics of the report contradict each other.
    """
    unknown = sorted(set(settings.unchecked) - set(RULES))
    if unknown:
        raise ValueError(f"--no-check: unknown rule {', '.join(unknown)}; the rules are {', '.join(RULES)}")
    if settings.tune_seconds is None:
        return _compare(settings, progress)
    tuning = run_tuning(settings, progress)
    if tuning.stopped_early:
        raise KeyboardInterrupt  # what is finished has been kept
    report = _compare(tuned_settings(settings, tuning), progress)
    results = [_tuned(each) for each in tuning.strategies]
    failed = [f"{name} could not be tuned, so its settings are as given: {why}" for name, why in tuning.failed.items()]
    return replace(report, tuning=results, notes=[*(each.advice for each in results), *failed, *report.notes])


def _compare(settings: Settings, progress: Callable[[ComparisonProgress], None] | None) -> Report:
    with opened_workload(settings) as (workload, affinity):
        return _Comparison(workload, affinity, progress or _no_progress).run()


def _tuned(strategy: TunedStrategy) -> TuningResult:
    return TuningResult(
        name=strategy.name,
        given=strategy.given,
        chosen=strategy.chosen,
        advice=strategy.advice(),
        configurations=len(strategy.configurations),
        seconds=strategy.seconds,
        is_cached=strategy.is_cached,
    )


def _no_progress(progress: ComparisonProgress) -> None:
    pass


class _Comparison:
    """One comparison. Its methods are its phases, in order."""

    def __init__(self, workload: Workload, affinity: list[int], progress: Callable[[ComparisonProgress], None]) -> None:
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
            raise ValueError(
                f"--strategies: two of {', '.join(names)} would have the same name; rename one, such as again=raw"
            )
        self._loading_only = [each for each in workload.stage_candidates() if each not in self._candidates]
        self._memory = self._settings.memory_nbytes or available_nbytes()
        self._checks: dict[Candidate, CheckedEpoch] = {}
        self._trials: dict[Candidate, SplitSeconds] = {}
        self._profile: Profile
        self._preparation: Preparation

    def run(self) -> Report:
        with Processes(self._workload, self._affinity) as processes:
            self._preparation = preparation = Preparation(
                self._workload, processes, len(self._affinity), self._progress
            )
            if preparation.randomness is not None:
                self._loading_only = []
            self._profile = preparation.take_profile()
            preparation.try_loaders()
            used = time.monotonic() - self._began - preparation.lost
            left = self._settings.budget_seconds - used - CLOSING_SECONDS
            left -= self._trial_seconds() * len(self._with_splits())
            self._workload.select(choose_records(self._workload, self._profile, left, processes.start_seconds))
            preparation.prepare()
            preparation.write_stores((*self._candidates, *self._loading_only))
            # Every split is predicted before any is tried.
            predicted = {each: self._predict(each) for each in preparation.own if self._preparation.can_run(each)}
            self._try_splits(processes)
            self._predictions = {
                self._workload.name(each): splits[self._threads(each)] for each, splits in predicted.items()
            }
            self._check(processes)
            rounds = self._measure(processes)
            timelines = self._trace(processes, rounds)
        measured = Measurements(
            workload=self._workload,
            started_at=self._started_at.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._began,
            affinity=self._affinity,
            memory_nbytes=self._memory,
            profile=self._profile,
            predictions=self._predictions,
            trials=self._trials,
            writing=preparation.writing,
            prepared=preparation.prepared,
            checks=self._checks,
            failed=preparation.failed,
            samples=rounds.samples,
            loads=rounds.loads,
            randomness=preparation.randomness,
            rounds=rounds.done,
            stopped_early=rounds.stopped_early,
            no_server=rounds.no_server,
            timelines=timelines,
        )
        report = make_report(measured)
        check_report(report)
        return report

    def _predict(self, candidate: Candidate) -> dict[Threads, float]:
        return {
            split: predict_wall(self._workload, candidate, split, self._profile)
            for split in self._workload.splits(candidate, self._profile.is_on_device)
        }

    def _try_splits(self, processes: Processes) -> None:
        """Choose the fastest CPU split of each strategy that loads ahead, from short trials.

        The rounds measure it again: no trial becomes a sample.
        """
        chosen = self._with_splits()
        for number, candidate in enumerate(chosen):
            self._progress("split", number, len(chosen))
            try:
                self._trials[candidate] = processes.try_splits(candidate, self._trial_seconds())
            except MeasurementError as error:
                self._preparation.failed[candidate] = f"other splits of its CPUs could not be tried: {error.reason}"
                self._preparation.untried.add(candidate)
                continue
            fastest = choose_split(self._trials[candidate])
            if fastest is not None:
                self._workload.chosen[candidate] = fastest

    def _with_splits(self) -> list[Candidate]:
        """Return the candidates that have more than one way to split their CPUs."""
        is_on_device = self._profile.is_on_device
        own = [each for each in self._preparation.own if self._preparation.can_run(each)]
        return [each for each in own if len(self._workload.splits(each, is_on_device)) > 1]

    def _trial_seconds(self) -> float:
        return self._settings.budget_seconds * TRIALS_SHARE / max(1, len(self._with_splits()))

    def _check(self, processes: Processes) -> None:
        """Digest an untimed epoch of each candidate, and train on its first batches."""
        compute_threads = min(self._threads(each).compute for each in self._preparation.own or self._candidates)
        checked = [each for each in (*self._candidates, *self._loading_only) if self._preparation.can_run(each)]
        for number, candidate in enumerate(checked):
            self._progress("check", number, len(checked))
            trains = candidate in self._candidates
            with self._preparation.left_out(candidate, "when its epoch was checked"):
                self._checks[candidate] = processes.check(candidate, compute_threads, trains)
        self._preparation.raise_if_all_failed()
        source = self._workload.source
        if isinstance(source, ForeignSource) and self._settings.epoch_batches is None:
            # The last batch of an epoch, whose records were guessed from its batches, may be incomplete.
            source.count = max(each.content.samples for each in self._checks.values())
            self._workload.select(source.count)
            self._preparation.set_prepared_records(source.count)

    def _measure(self, processes: Processes) -> ComparisonRounds:
        def show(done: int) -> None:
            self._progress("measure", done, self._settings.rounds)

        show(0)
        rounds = ComparisonRounds(
            [each for each in self._candidates if each in self._checks],
            [each for each in self._loading_only if each in self._checks],
            processes,
            rounds=self._settings.rounds,
            etl_alone_rounds=self._settings.etl_alone_rounds,
            deadline=self._began + self._preparation.lost + self._settings.budget_seconds - CLOSING_SECONDS,
            hard_deadline=self._began + self._preparation.lost + self._settings.budget_seconds * MAX_OVERRUN,
            seed=self._settings.seed,
            progress=show,
        )
        rounds.run()
        self._preparation.failed |= rounds.failed
        return rounds

    def _trace(self, processes: Processes, rounds: ComparisonRounds) -> list[Timeline]:
        """Return one timeline per strategy.

        Strategies that load ahead in threads are traced in a separate run. The timelines of all others were recorded in
        their first round.
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
                self._preparation.failed[candidate] = f"its timeline could not be recorded: {error.reason}"
            timelines.append(Timeline(self._workload.name(candidate), spans.waits, spans.computes, spans.loads))
        return timelines

    def _threads(self, candidate: Candidate) -> Threads:
        return self._workload.threads(candidate, self._profile.is_on_device)

    def _progress(self, phase: str, done: int, total: int | None) -> None:
        share = None
        if self._settings.rounds is None:
            share = min(1.0, (time.monotonic() - self._began - self._preparation.lost) / self._settings.budget_seconds)
        self._show(ComparisonProgress(phase, done, total, share, self._predictions))
