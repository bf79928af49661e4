"""Tuning from beginning to end: each strategy gets the same time to find its best configuration."""

from __future__ import annotations

import contextlib
import datetime
import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from etl.comparison.judge.make_report import describe_machine, describe_versions
from etl.comparison.judge.noise import THROTTLED_LIMIT
from etl.comparison.judge.results import EpochScale
from etl.comparison.judge.sameness import compare_epochs
from etl.comparison.request.answers import CheckedEpoch, TuningSample
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.settings import Settings
from etl.comparison.run.comparison_progress import ComparisonProgress
from etl.comparison.run.measuring_processes import InputError, MeasuringProcesses
from etl.comparison.run.preparation import Preparation, opened_workload
from etl.comparison.run.schedule import EPOCH_SECONDS as REPEATED_SECONDS
from etl.comparison.run.workload import Workload
from etl.comparison.tuning.cache import Cache
from etl.comparison.tuning.search import Arm, Search, choose
from etl.comparison.tuning.space import space_of
from etl.comparison.tuning.tuning_results import (
    Costs,
    Limits,
    TriedConfiguration,
    TunedStrategy,
    Tuning,
    with_front,
)
from etl.measuring.processes import MeasurementError
from etl.units import describe_settings

# Length of the epochs of a turn, and their fewest batches. Epochs below `REPEATED_SECONDS` are repeated.
EPOCH_SECONDS, MIN_EPOCH_BATCHES = 1.0, 16
# Share of the batches of a turn that are looked at first.
LOOK_SHARE = 0.1
# Share of a strategy's time for writing stores besides that of the given configuration.
WRITING_SHARE = 0.2
# A configuration is given up after this many times the time of the given one, and this many seconds.
SLOWEST, MARGIN = 5.0, 20.0
# Levels of sameness at which a configuration does the same work as the given one.
SAME = ("identical", "same records", "close")


def run_tuning(settings: Settings, progress: Callable[[ComparisonProgress], None] | None = None) -> Tuning:
    """Find the best configuration of each strategy of `settings`, each within `settings.tune_seconds`.

    After an interruption the result has the strategies that are finished; if none is, `KeyboardInterrupt` is raised.
    Other errors, and `progress`, are those of `etl.tune`.
    """
    labels = [Candidate.parse(each).name for each in settings.strategies]
    if any(tuned_label(each) in labels for each in labels):
        raise ValueError(f"--tune: {', '.join(labels)}: a name with (tuned) is that of a tuned strategy; rename it")
    if settings.ranks > 1:
        raise ValueError("--tune and --ranks: settings are tuned for one rank; tune without --ranks first")
    with opened_workload(settings) as (workload, affinity):
        return _Tuner(workload, affinity, progress or (lambda _: None)).run()


def tuned_label(name: str) -> str:
    """Return the name of a user's loader with the settings that were best for it."""
    return f"{name} (tuned)"


def tuned_settings(settings: Settings, tuning: Tuning) -> Settings:
    """Return settings that compare the tuned strategies.

    A strategy of this package has its best configuration. A user's loader is compared as it was given and, if
    another configuration was better, in a second row called "NAME (tuned)".
    """
    found = {each.name: each for each in tuning.strategies}
    strategies: list[str] = []
    configured, pythons = dict(settings.configured), dict(settings.pythons)
    for given in settings.strategies:
        candidate = Candidate.parse(given)
        name = candidate.name
        tuned = found.get(name)
        strategies.append(given)
        if tuned is None or not tuned.chosen:  # then `etl compare` finds the split of the CPUs
            continue
        if not tuned.is_foreign:
            configured[name] = {**settings.configured.get(name, {}), **tuned.given, **tuned.chosen}
        else:
            label = tuned_label(name)
            strategies.append(f"{label}={candidate.strategy}")
            configured[label] = {**settings.configured.get(name, {}), **tuned.chosen}
            if name in pythons:
                pythons[label] = pythons[name]
    return replace(settings, strategies=tuple(strategies), configured=configured, pythons=pythons, tune_seconds=None)


class _Tuner:
    """Tunes the strategies of a workload, one after the other."""

    def __init__(self, workload: Workload, affinity: list[int], show: Callable[[ComparisonProgress], None]) -> None:
        self._workload = workload
        self._settings = workload.settings
        self._affinity = affinity
        self._show = show
        self._began = time.monotonic()
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._cache = Cache(self._settings.tuning_cache)
        self._limits = Limits(
            self._settings.memory_nbytes, self._settings.max_disk_nbytes, self._settings.max_prepare_seconds
        )
        self._failed: dict[str, str] = {}
        self._total = float(self._settings.tune_seconds or self._settings.budget_seconds)

    def run(self) -> Tuning:
        stopped_early = False
        # Formats are settings of a strategy.
        candidates = list({each.origin: each for each in reversed(self._workload.candidates())}.values())[::-1]
        kept = {each: self._cache.path(self._workload, each, self._affinity) for each in candidates}
        loaded = {} if self._settings.retune else {each: self._cache.load(path) for each, path in kept.items()}
        known = {each: replace(found, is_cached=True) for each, found in loaded.items() if found is not None}
        new = [each for each in candidates if each not in known]
        self._total *= len(new)
        if new:
            with MeasuringProcesses(self._workload, self._affinity) as processes:
                try:
                    self._tune_all(new, processes, known, kept)
                except KeyboardInterrupt:
                    if not known:
                        raise
                    stopped_early = True
        tuned = [replace(known[each], name=each.name) for each in candidates if each in known]
        if not tuned:
            name, reason = next(iter(self._failed.items()))
            raise MeasurementError(f"no strategy could be tuned; {name}: {reason}", reason)
        return Tuning(
            source=self._settings.title,
            source_records=max(each.source_records for each in tuned),
            measured_records=max(each.measured_records for each in tuned),
            settings=self._described_settings(),
            machine=describe_machine(),
            versions=describe_versions(),
            started_at=self._started_at,
            seconds=time.monotonic() - self._began,
            strategies=tuned,
            failed=self._failed,
            stopped_early=stopped_early,
        )

    def _described_settings(self) -> dict[str, Any]:
        values = self._settings.to_json()
        shown = ("batch_size", "dtype", "size", "decoder", "compute", "model", "step", "cache", "tune_seconds", "seed")
        return {**{name: values[name] for name in shown}, "threads": len(self._affinity), **self._limits.as_dict()}

    def _tune_all(
        self,
        candidates: list[Candidate],
        processes: MeasuringProcesses,
        known: dict[Candidate, TunedStrategy],
        kept: Mapping[Candidate, Any],
    ) -> None:
        """Tune `candidates`, and add the results to `known`."""
        preparation = Preparation(self._workload, processes, self._progress)
        preparation.try_loaders(candidates)
        deadline = self._began + preparation.lost + self._total
        for number, candidate in enumerate(candidates):
            name = candidate.name
            reason = preparation.failed.get(candidate)
            if reason is not None:
                self._failed[name] = reason
                continue
            began = time.monotonic()
            seconds = (deadline - began) / (len(candidates) - number)
            tuning = _OneStrategy(self._workload, processes, preparation, candidate, self._limits, self._progress)
            try:
                result = tuning.run(began + seconds)
            except MeasurementError as error:
                self._failed[name] = error.reason
                continue
            except InputError as error:
                if not known:
                    raise
                self._failed[name] = str(error)  # what was measured of the others is not lost
                continue
            known[candidate] = replace(result, seconds=time.monotonic() - began)
            if tuning.was_interrupted:
                raise KeyboardInterrupt
            if not result.is_throttled:
                self._cache.save(kept[candidate], known[candidate])

    def _progress(self, phase: str, done: int, total: int | None) -> None:
        share = min(1.0, (time.monotonic() - self._began) / self._total)
        self._show(ComparisonProgress(phase, done, total, share))


class _OneStrategy:
    """Tunes one strategy.

    Attributes
    ----------
    was_interrupted : bool
        True if the last rounds were interrupted, so that there is a result of fewer rounds.
    """

    def __init__(
        self,
        workload: Workload,
        processes: MeasuringProcesses,
        preparation: Preparation,
        candidate: Candidate,
        limits: Limits,
        progress: Callable[[str, int, int | None], None],
    ) -> None:
        self._workload = workload
        self._processes = processes
        self._preparation = preparation
        self._given = candidate
        self._limits = limits
        self._progress = progress
        self._space = space_of(workload, candidate, workload.settings.same_pixels)
        self._arms: dict[Candidate, Arm] = {}
        self._checks: dict[Arm, CheckedEpoch | None] = {}
        self._as_given = self._arm({})
        # Duration of the first sample, which is of the given configuration.
        self._first_seconds: float | None = None
        self.was_interrupted = False

    def run(self, deadline: float) -> TunedStrategy:
        """Tune until `deadline`, a time of `time.monotonic`, and return the result."""
        began = time.monotonic()
        self._select(deadline - began)
        given, seed = self._as_given, self._workload.settings.seed
        self._processes.renew()  # its start is not part of the first sample
        few = max(MIN_EPOCH_BATCHES, round(LOOK_SHARE * self._turn_batches))
        search = Search(
            given,
            self._take,
            look=partial(self._take, batches=few) if 2 * few <= self._turn_batches else None,
            renew=self._processes.renew,
            epoch_batches=self._scale.batches,
            deadline=deadline,
            seed=seed,
            progress=self._progress,
            is_eligible=self._does_same_work,
        )
        count = search.measure_given()
        if self._given.is_presaved:
            self._write(self._with_other_stores(), began + WRITING_SHARE * (deadline - began))
        changes = self._space.first_choice(count, seed, lambda each: self._is_allowed(self._arm(each)))
        finalists = search.confirm(search.explore(map(self._arm, changes), self._near))
        self.was_interrupted = search.was_interrupted
        measured = [each for each in self._arms.values() if each.samples]
        failed = [each for each in self._arms.values() if each.failed]
        throttled = statistics.median(sample.throttled for each in measured for sample in each.samples)
        ratios = {each: ratio for each in measured if each is not given and (ratio := each.ratio_to(given)) is not None}
        shown = {each: ratios[each] for each in finalists if self._is_allowed(each)}
        if throttled > THROTTLED_LIMIT:
            shown.clear()
        if given.failed:
            given.dropped = given.dropped or f"it failed in a later round: {given.failed}"
        best = choose(given, shown, self._simplicity, may_keep=self._is_allowed(given))
        return TunedStrategy(
            name=self._given.name,
            strategy=self._given.strategy,
            is_foreign=self._given.is_foreign,
            given=self._space.given,
            chosen=best.changes,
            configurations=with_front(
                TriedConfiguration(
                    settings=each.changes,
                    costs=self._costs(each),
                    trials=len(each.rounds) + (each is given),
                    is_finalist=each in finalists or each is given,
                    ratio=ratios.get(each),
                    dropped=each.dropped,
                    turns=len(each.samples),
                    left=each.left,
                )
                for each in measured
            ),
            untried=max(0, len(self._space) - len({*measured, *failed})),
            failed={describe_settings(each.changes) or "as given": each.failed for each in failed},
            limits=self._limits.as_dict(),
            source_records=len(self._workload.source),
            measured_records=len(self._workload.records),
            throttled=throttled,
        )

    @property
    def _scale(self) -> EpochScale:
        workload = self._workload
        return EpochScale(len(workload.source), len(workload.records), workload.settings.step_records)

    def _arm(self, changes: Mapping[str, Any]) -> Arm:
        """Return the arm with these changes, which is the same each time."""
        candidate = self._space.candidate(changes)
        return self._arms.setdefault(candidate, Arm(candidate, dict(changes)))

    def _select(self, seconds: float) -> None:
        """Select so many records that an epoch takes about `EPOCH_SECONDS`, and get what the given configuration reads.

        That of a strategy of this package is tried on few records first.
        """
        workload, size = self._workload, self._workload.settings.step_records
        if self._given.is_foreign:
            tried = workload.tried[self._given.origin]
            batch_seconds = tried.seconds_per_batch + tried.compute_seconds
        else:
            self._get(MIN_EPOCH_BATCHES * size)
            first_look = self._processes.tune(self._as_given.candidate, MIN_EPOCH_BATCHES)
            workload.is_on_device = first_look.device not in ("cpu", "none")
            batch_seconds = first_look.seconds_per_batch
        wanted = max(MIN_EPOCH_BATCHES, round(EPOCH_SECONDS / batch_seconds))
        if self._given.is_presaved:
            written = self._preparation.writing[self._as_given.candidate.store]
            a_batch = size * written.seconds / written.records
            wanted = min(wanted, max(MIN_EPOCH_BATCHES, round(WRITING_SHARE / 2 * seconds / a_batch)))
        self._get(wanted * size)

    def _get(self, records: int) -> None:
        """Select this many records, and get what the given configuration reads of them."""
        count = min(len(self._workload.source), records)
        if count != len(self._workload.records):
            self._preparation.remove_stores()
            self._workload.select(count)
        if self._given.is_foreign:
            self._preparation.prepare(self._given.origin)
            if self._given in self._preparation.failed:
                raise MeasurementError(self._preparation.failed[self._given])
        self._write([self._as_given], math.inf)

    def _take(self, arms: Sequence[Arm], batches: int | None = None) -> Generator[TuningSample, None, None]:
        """Yield samples from one process, of whole turns or of so many `batches`.

        Only an error in the first sample is raised as an error in the input.
        """
        limit = None if self._first_seconds is None else SLOWEST * self._first_seconds + MARGIN
        turns = [(each.candidate, 1 if batches else self._epochs(each)) for each in arms]
        try:
            started = time.monotonic()
            for sample in self._processes.tune_in_turns(turns, batches or self._turn_batches, limit):
                self._first_seconds = self._first_seconds or time.monotonic() - started
                yield sample
        except InputError as error:
            if self._first_seconds is None:
                raise
            raise MeasurementError(str(error), reason=str(error)) from error

    def _epochs(self, arm: Arm) -> int:
        """Return the epochs of a turn after the first one: as many as a sample of a comparison has."""
        is_whole = self._turn_batches >= self._workload.epoch_batches(arm.candidate)
        if not arm.samples or not is_whole or self._workload.settings.cache == "cold":
            return 1
        return math.ceil(REPEATED_SECONDS / max(arm.samples[0].epoch_seconds(self._turn_batches), 1e-3))

    @property
    def _turn_batches(self) -> int:
        """Batches of an epoch of a turn."""
        selected = -(-len(self._workload.records) // self._workload.settings.step_records)
        return (self._workload.batches_of(self._given) or selected) if self._given.is_foreign else selected

    def _with_other_stores(self) -> list[Arm]:
        """Return configurations that differ from the given one in its store only: other formats come first."""
        near = list(self._space.neighbours({}))
        formats = [each for each in near if "format" in each or "compression" in each]
        return list(map(self._arm, [*formats, *(each for each in near if "stage" in each)]))

    def _write(self, arms: list[Arm], deadline: float) -> None:
        """Write the stores of `arms` in their order, none after the deadline."""
        for each in arms:
            if not each.candidate.is_presaved or each.candidate.store in self._preparation.writing:
                continue
            if time.monotonic() >= deadline:
                break
            try:
                self._preparation.write_stores([each.candidate])
            except (MeasurementError, InputError) as error:
                if each is self._as_given:
                    raise
                each.dropped = f"its store could not be written: {error}"

    def _is_allowed(self, arm: Arm) -> bool:
        """Return True if `arm` has its files, reads safely, and exceeds no limit as far as that is known."""
        candidate = arm.candidate
        if candidate.is_presaved and candidate.store not in self._preparation.writing:
            return False
        if self._workload.has_one_reader(candidate) and candidate.setting("loading_threads", 1) > 1:
            return False
        arm.dropped = self._limits.exceeded_by(self._costs(arm)) or arm.dropped
        return not arm.dropped

    def _near(self, arm: Arm) -> list[Arm]:
        return list(filter(self._is_allowed, map(self._arm, self._space.neighbours(arm.changes))))

    def _does_same_work(self, arm: Arm) -> bool:
        """Return True if `arm` is allowed, and loads the same records as the given configuration; otherwise drop it."""
        if not self._is_allowed(arm):
            return False
        if arm is self._as_given:
            return True
        if self._given.is_foreign and not self._workload.gets_selected(self._given):  # only a part of them is read
            return True
        if (expected := self._check(self._as_given)) is None:
            arm.dropped = "the given epoch could not be checked"
            return False
        # Of random transforms that are drawn anew whenever they are read, only the amount can be the same.
        is_random = self._preparation.randomness is not None or (self._given.is_foreign and expected.reshuffles is None)
        if (epoch := self._check(arm)) is None:
            arm.dropped = "its epoch could not be checked"
            return False
        same = compare_epochs(epoch.content, expected.content, "the given configuration")
        if same.level not in ((*SAME, "same amount") if is_random else SAME):
            arm.dropped = f"it loads other records: {same.reason}"
        return not arm.dropped

    def _check(self, arm: Arm) -> CheckedEpoch | None:
        """Return an epoch of `arm`, computed with the threads of the given configuration; None if it fails."""
        if arm in self._checks:
            return self._checks[arm]
        threads = self._workload.threads(self._as_given.candidate).compute
        self._checks[arm] = None
        with contextlib.suppress(MeasurementError, InputError):
            self._checks[arm] = self._processes.check(arm.candidate, threads, trains=False, again="whole")
        return self._checks[arm]

    def _simplicity(self, arm: Arm) -> tuple[int, int]:
        return len(arm.changes), self._costs(arm).disk_nbytes

    def _costs(self, arm: Arm) -> Costs:
        """Return what `arm` costs; if it was not measured, its time and memory are 0."""
        scale, written = self._scale, self._preparation.written([arm.candidate]).get(arm.candidate)
        return Costs(
            seconds=self._epoch_seconds(arm, scale.batches) if arm.samples else 0.0,
            prepare_seconds=0.0 if written is None else scale.amount(written.seconds, written.records),
            disk_nbytes=0 if written is None else round(scale.amount(written.nbytes, written.records)),
            memory_nbytes=arm.memory_nbytes,
        )

    def _epoch_seconds(self, arm: Arm, batches: float) -> float:
        """Return the median of the rounds of the given configuration, times the ratio to it.

        Times of different rounds cannot be compared.
        """
        given, ratio = self._as_given, arm.ratio_to(self._as_given)
        if ratio is None:
            return arm.samples[-1].epoch_seconds(batches)
        return statistics.median(given.rounds.values()) * (1.0 if arm is given else ratio.estimate)
