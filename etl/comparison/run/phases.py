"""A comparison from beginning to end, phase by phase."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Mapping

from etl.comparison.judge.contradictions import check_report
from etl.comparison.judge.make_report import make_report
from etl.comparison.judge.report import ReportData, Timeline
from etl.comparison.judge.results import Measurements
from etl.comparison.request.answers import CheckedEpoch, TuningSample
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.settings import Settings
from etl.comparison.request.subset import UserLoaderSource
from etl.comparison.run.comparison_progress import ComparisonProgress
from etl.comparison.run.comparison_rounds import ComparisonRounds
from etl.comparison.run.measuring_processes import InputError, MeasuringProcesses
from etl.comparison.run.preparation import Preparation, opened_workload
from etl.comparison.run.schedule import (
    USUAL_SECONDS,
    Pace,
    choose_records,
    choose_rounds,
    describe_schedule,
    etl_alone_rounds,
    first_records,
    recipes_of,
    seconds_of_round,
)
from etl.comparison.run.workload import Workload
from etl.measuring.processes import MeasurementError
from etl.measuring.sample import Recipe, Spans
from etl.measuring.statistics import USUAL_ROUNDS
from etl.runtime.resources import available_nbytes

# Seconds of the time budget that are kept for the phases after the rounds.
CLOSING_SECONDS = 3.0
# Pilots of each split of the CPUs, of which a short comparison has one; their batches after the start-up; and how many
# times as long as with the best split a batch takes with one that loses early.
PILOT_TURNS, PILOT_BATCHES, CLEARLY_SLOWER = 2, 6, 1.05


def compare_as_given(settings: Settings, progress: Callable[[ComparisonProgress], None] | None = None) -> ReportData:
    """Compare the strategies of `settings` as they are, and return the report; see `run_comparison`."""
    with opened_workload(settings) as (workload, affinity):
        return _Comparison(workload, affinity, progress or (lambda _: None)).run()


class _Comparison:
    """One comparison. Its methods are its phases, in order."""

    def __init__(self, workload: Workload, affinity: list[int], progress: Callable[[ComparisonProgress], None]) -> None:
        self._workload = workload
        self._settings = workload.settings
        self._affinity = affinity
        self._show = progress
        self._began = time.monotonic()
        self._started_at = datetime.datetime.now(datetime.UTC)
        self._candidates = workload.candidates()
        names = [workload.name(each) for each in self._candidates]
        if len(set(names)) < len(names):
            raise ValueError(
                f"--strategies: two of {', '.join(names)} would have the same name; rename one, such as again=raw"
            )
        self._loading_only = [each for each in workload.stage_candidates() if each not in self._candidates]
        self._memory = self._settings.memory_nbytes or available_nbytes()
        self._checks: dict[Candidate, CheckedEpoch] = {}
        self._trials: dict[Candidate, dict[CpuSplit, list[float]]] = {}
        self._gave_way = ""
        self._preparation: Preparation

    def run(self) -> ReportData:
        with MeasuringProcesses(self._workload, self._affinity) as processes:
            self._preparation = preparation = Preparation(self._workload, processes, self._progress)
            if preparation.randomness is not None:
                self._loading_only = []
            preparation.try_loaders(self._candidates)
            self._workload.select(first_records(self._workload))
            paces = self._look(processes)
            seconds = self._deadline - time.monotonic() - CLOSING_SECONDS
            records = choose_records(self._workload, paces, seconds)
            if records != len(self._workload.records):
                self._workload.select(records)
                preparation.remove_stores()
                paces = self._look(processes)
            profile = preparation.take_profile()
            recipes = recipes_of(self._workload, paces)
            self._progress("start", 0, 1)
            left = self._deadline - CLOSING_SECONDS - time.monotonic()
            processes.start_ahead(choose_rounds(self._workload, seconds_of_round(self._workload, recipes, paces), left))
            rounds = self._measure(processes, recipes)
            timelines = self._trace(processes, rounds)
        measured = Measurements(
            work=self._workload.prepared(),
            started_at=self._started_at.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._began,
            affinity=self._affinity,
            memory_nbytes=self._memory,
            profile=profile,
            trials=self._trials,
            written=preparation.written((*self._candidates, *self._loading_only)),
            checks=self._checks,
            failed=preparation.failed,
            samples=rounds.samples,
            loads=rounds.loads,
            randomness=preparation.randomness,
            rounds=rounds.done,
            stopped_early=rounds.stopped_early,
            end_reason=rounds.end_reason,
            timelines=timelines,
            gave_way=self._gave_way,
            order_seed=rounds.seed,
            places=rounds.places,
            retaken=rounds.gate.retaken,
            disturbed=rounds.gate.disturbed,
        )
        report = make_report(measured)
        check_report(report)
        return report

    @property
    def _deadline(self) -> float:
        """When the time of the comparison ends; that of candidates that failed is not taken from the others."""
        return self._began + self._settings.budget_seconds + self._preparation.lost

    def _look(self, processes: MeasuringProcesses) -> dict[Candidate, Pace]:
        """Get what the candidates read, check an epoch of each, and choose how it splits its CPUs.

        Return the pace of each that can run.
        """
        preparation = self._preparation
        preparation.prepare()
        preparation.write_stores((*self._candidates, *self._loading_only))
        # A second look, at more records, replaces all that the first one found.
        self._checks.clear()
        self._trials.clear()
        for each in preparation.untried:
            del preparation.failed[each]
        preparation.untried.clear()
        self._check(processes)
        compared = [each for each in self._candidates if each in self._checks]
        with_splits = [each for each in compared if len(self._workload.splits(each)) > 1]
        pilots = {each: self._choose_split(processes, each, len(with_splits)) for each in with_splits}
        preparation.raise_if_all_failed()
        return {each: Pace.of(self._checks[each], pilots.get(each)) for each in compared if preparation.can_run(each)}

    def _check(self, processes: MeasuringProcesses) -> None:
        """Digest an untimed epoch of each candidate, and train on its first batches."""
        workload, own = self._workload, self._preparation.own
        compute_threads = min(workload.threads(each).compute for each in own or self._candidates)
        checked = [each for each in (*self._candidates, *self._loading_only) if self._preparation.can_run(each)]
        again = "whole" if workload.settings.ranks > 1 or not any(map(self._preparation.can_run, own)) else "begun"
        counts = self._compute_counts()
        for number, candidate in enumerate(checked):
            self._progress("check", number, len(checked))
            trains = candidate in self._candidates
            asked = counts if trains and not candidate.is_foreign else []
            with self._preparation.left_out(candidate, "when its epoch was checked"):
                self._checks[candidate] = seen = processes.check(candidate, compute_threads, trains, again, asked)
                workload.is_on_device = workload.is_on_device or seen.device not in ("cpu", "none")
                if seen.compute_seconds:
                    fastest = min(seen.compute_seconds, key=seen.compute_seconds.__getitem__)
                    workload.plain_compute_threads, counts = int(fastest), []
        self._preparation.raise_if_all_failed()
        source = workload.source
        if isinstance(source, UserLoaderSource) and self._settings.epoch_batches is None:
            # The last batch of an epoch, whose records were guessed from its batches, may be incomplete.
            source.count = max(each.content.samples for each in self._checks.values())
            workload.select(source.count)
            self._preparation.set_prepared_records(source.count)

    def _compute_counts(self) -> list[int]:
        """Return numbers of threads with which strategies that do not load ahead might compute fastest."""
        own, settings = self._preparation.own, self._settings
        is_plain = any(not each.is_ahead and each.setting("compute_threads") is None for each in own)
        if not is_plain or settings.simulated_seconds is not None or settings.ranks > 1:
            return []
        return self._workload.compute_counts()

    def _choose_split(self, processes: MeasuringProcesses, candidate: Candidate, total: int) -> TuningSample | None:
        """Choose how `candidate`, one of `total`, splits its CPUs, and return a sample of that; None if it failed.

        A split that is clearly slower than the best loses after one sample. The rounds measure the chosen one again: no
        pilot becomes a sample.
        """
        workload = self._workload
        splits = workload.splits(candidate)
        batches = min(workload.epoch_batches(candidate), workload.start_up_batches(candidate) + PILOT_BATCHES)
        taken: dict[CpuSplit, list[TuningSample]] = {each: [] for each in splits}
        workload.chosen.pop(candidate, None)
        chosen = splits[0]
        try:
            for turn in range(PILOT_TURNS if self._settings.budget_seconds >= USUAL_SECONDS else 1):
                for split in splits if turn % 2 == 0 else splits[::-1]:
                    self._progress("split", len(self._trials), total)
                    workload.chosen[candidate] = split
                    taken[split].append(processes.tune(candidate, batches))
                seconds = {each: statistics.median(one.seconds_per_batch for one in taken[each]) for each in splits}
                chosen = min(splits, key=seconds.__getitem__)
                splits = [each for each in splits if seconds[each] < CLEARLY_SLOWER * seconds[chosen]]
                if len(splits) == 1:
                    break
        except MeasurementError as error:
            self._preparation.failed[candidate] = f"other splits of its CPUs could not be tried: {error.reason}"
            self._preparation.untried.add(candidate)
        workload.chosen[candidate] = chosen
        self._trials[candidate] = {
            split: [each.seconds_per_batch for each in samples] for split, samples in taken.items() if samples
        }
        return taken[chosen][-1] if taken[chosen] else None

    def _measure(self, processes: MeasuringProcesses, recipes: Mapping[Candidate, Recipe]) -> ComparisonRounds:
        wanted = self._settings.rounds or USUAL_ROUNDS

        def show(done: int) -> None:
            self._progress("measure", done, wanted)

        def choose(seconds_of_round: float) -> int:
            nonlocal wanted
            left = self._deadline + rounds.lost - CLOSING_SECONDS - time.monotonic()
            wanted = choose_rounds(self._workload, seconds_of_round, left)
            return wanted

        show(0)
        rounds = ComparisonRounds(
            recipes,
            [each for each in self._loading_only if each in self._checks],
            processes,
            etl_alone_rounds=etl_alone_rounds(self._settings),
            seed=None,
            name=self._workload.name,
            progress=show,
        )
        rounds.run(choose)
        self._preparation.failed |= rounds.failed
        self._preparation.lost += rounds.lost
        self._gave_way = describe_schedule(self._workload, wanted, time.monotonic() > self._deadline)
        return rounds

    def _trace(self, processes: MeasuringProcesses, rounds: ComparisonRounds) -> list[Timeline]:
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
            except (InputError, MeasurementError) as error:
                reason = error.reason if isinstance(error, MeasurementError) else error
                self._preparation.failed[candidate] = f"its timeline could not be recorded: {reason}"
            timelines.append(Timeline(self._workload.name(candidate), spans.waits, spans.computes, spans.loads))
        return timelines

    def _progress(self, phase: str, done: int, total: int | None) -> None:
        share = None
        if self._settings.rounds is None:
            share = min(1.0, (time.monotonic() - self._began - self._preparation.lost) / self._settings.budget_seconds)
        self._show(ComparisonProgress(phase, done, total, share))
