"""The schedule of a comparison: how many records, epochs and rounds are measured in its time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from etl.comparison.request.answers import CheckedEpoch, TuningSample
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.settings import Settings
from etl.comparison.run.workload import Workload
from etl.measuring.sample import Recipe
from etl.measuring.statistics import MIN_ROUNDS, USUAL_ROUNDS

# Batches of an epoch after its start-up, at least.
MIN_BATCHES = 10
# A shorter epoch is repeated until so many seconds are timed.
EPOCH_SECONDS = 0.5
# A comparison of less time than this may have as few rounds as `MIN_ROUNDS_SHOWN`, which show nothing, if more would
# take longer than `MAX_OVERRUN` times its budget.
USUAL_SECONDS, MIN_ROUNDS_SHOWN, MAX_OVERRUN = 60.0, 3, 1.25
# Compute alone is timed for this long in each sample.
COMPUTE_SECONDS = 0.05
# Rounds in which loading alone is measured, if other CPUs, compute or storage are asked for.
MIN_LOADING_ROUNDS = 3
# Seconds to fork a process, make a model and open a loader, until it is known how long that takes.
PROCESS_SECONDS = 0.4
# More records are measured only if they are so many times those of the first look.
WORTH_MORE = 1.25


@dataclass(frozen=True)
class Pace:
    """The speed of a strategy, as far as it is known before its rounds. Times are in seconds.

    Attributes
    ----------
    first : float
        Until the first step is done.
    per_batch : float
        In the middle of an epoch.
    outside : float
        Of a process, besides its epoch.
    has_one_layout : bool
        True if the records of all batches have the same layout.
    """

    first: float
    per_batch: float
    outside: float = PROCESS_SECONDS
    has_one_layout: bool = False

    @classmethod
    def of(cls, check: CheckedEpoch, pilot: TuningSample | None) -> Pace:
        """Return the pace that a pilot has shown, or if there was none, the checked epoch."""
        outside, alike = PROCESS_SECONDS + check.first_seconds, check.content.has_one_layout
        if pilot is not None:
            return cls(pilot.first_seconds, pilot.seconds_per_batch, outside, alike)
        return cls(check.first_seconds, check.batch_seconds, outside, alike)

    def seconds(self, recipe: Recipe, batches: int) -> float:
        """Return the seconds of a sample; `batches` are those of an epoch, unless the recipe takes fewer."""
        taken = recipe.batches or batches
        epoch = self.first + (taken - 1) * self.per_batch
        timed = recipe.epochs + recipe.etl_alone
        return self.outside + timed * epoch + recipe.compute_seconds


def first_records(workload: Workload) -> int:
    """Return how many records are looked at first: as few as can be measured, or those that the settings ask for."""
    settings, available = workload.settings, available_records(workload)
    wanted = settings.records
    if settings.check_epoch:
        return available
    if wanted is None and settings.epoch_batches is not None:
        wanted = settings.epoch_batches * settings.step_records
    if wanted is not None:
        whole = max(1, wanted // settings.step_records) * settings.step_records
        return available if wanted >= available else min(whole, available)
    return min(available, (MIN_BATCHES + workload.margin_batches) * settings.step_records)


def available_records(workload: Workload) -> int:
    """Return the records that can be measured: of several ranks, those of whole batches, equally many on each.

    Raises
    ------
    ValueError
        If there are not enough for one step of all ranks.
    """
    records, step_records = len(workload.source), workload.settings.step_records
    if workload.settings.ranks == 1:
        return records
    if records < step_records:
        raise ValueError(
            f"one step of all ranks takes {step_records:,} records, and there are {records:,}: compare with fewer "
            "--ranks, or with a smaller --batch-size"
        )
    return records // step_records * step_records


def etl_alone_rounds(settings: Settings) -> int:
    """Return the rounds in which loading alone is measured, too; predictions for elsewhere need several."""
    return max(settings.etl_alone_rounds, MIN_LOADING_ROUNDS) if settings.what_if else settings.etl_alone_rounds


def has_choice(workload: Workload) -> bool:
    """Return True if time decides how many records are measured."""
    settings = workload.settings
    return settings.records is None and settings.epoch_batches is None and not settings.check_epoch


def choose_records(workload: Workload, paces: Mapping[Candidate, Pace], seconds: float) -> int:
    """Return how many records there is time for, at least as many as are selected."""
    available, selected = available_records(workload), len(workload.records)
    if not has_choice(workload) or selected >= available:
        return selected
    rounds = workload.settings.rounds or USUAL_ROUNDS
    fixed = sum(rounds * each.outside for each in paces.values())
    a_batch = sum((rounds + etl_alone_rounds(workload.settings)) * each.per_batch for each in paces.values())
    looking = sum(each.per_batch for each in paces.values())  # at stores, and at the records once more
    batches = int((seconds - fixed) / max(a_batch + 2 * looking, 1e-9))
    records = min(available, (batches + workload.margin_batches) * workload.settings.step_records)
    return records if records >= WORTH_MORE * selected else selected


def recipes_of(workload: Workload, paces: Mapping[Candidate, Pace]) -> dict[Candidate, Recipe]:
    """Return what is measured of each strategy in a sample: short epochs are repeated."""
    recipes = {}
    for candidate, pace in paces.items():
        recipe = replace(
            workload.recipe(candidate), compute_seconds=COMPUTE_SECONDS, has_one_layout=pace.has_one_layout
        )
        epoch = pace.first + ((recipe.batches or workload.epoch_batches(candidate)) - 1) * pace.per_batch
        if recipe.batches is None and workload.settings.cache != "cold":
            recipe = replace(recipe, epochs=max(1, math.ceil(EPOCH_SECONDS / max(epoch, 1e-3))))
        recipes[candidate] = recipe
    return recipes


def seconds_of_round(workload: Workload, recipes: Mapping[Candidate, Recipe], paces: Mapping[Candidate, Pace]) -> float:
    """Return the seconds that a round is expected to take."""
    return sum(pace.seconds(recipes[each], workload.epoch_batches(each)) for each, pace in paces.items())


def choose_rounds(workload: Workload, seconds_of_round: float, seconds_left: float) -> int:
    """Return the number of rounds: as many as are usual or were asked for, or if time is short, down to the fewest."""
    settings = workload.settings
    if settings.rounds is not None:
        return settings.rounds

    def within(seconds: float) -> int:
        return min(USUAL_ROUNDS, int(seconds / max(seconds_of_round, 1e-9)))

    if within(seconds_left) >= MIN_ROUNDS or settings.budget_seconds >= USUAL_SECONDS:
        return max(MIN_ROUNDS, within(seconds_left))
    overrun = (MAX_OVERRUN - 1) * settings.budget_seconds
    return max(MIN_ROUNDS_SHOWN, min(MIN_ROUNDS, within(seconds_left + overrun)))


def describe_schedule(workload: Workload, rounds: int, is_over: bool) -> str:
    """Say what gave way to the time budget, time itself if the comparison `is_over`; return nothing if nothing did."""
    gave_way = []
    if has_choice(workload) and len(workload.records) < available_records(workload):
        gave_way.append(f"{len(workload.records):,} records instead of {available_records(workload):,}")
    if workload.settings.rounds is None and rounds < USUAL_ROUNDS:
        gave_way.append(f"{rounds} rounds instead of {USUAL_ROUNDS}")
    if is_over:
        gave_way.append("more time, since fewer show nothing")
    return "" if not gave_way else f"To keep to the budget of time: {', '.join(gave_way)}."
