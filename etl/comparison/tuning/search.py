"""The search for the best configuration: successive halving in fresh processes, then shuffled rounds."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.comparison.judge.recommendation import NEGLIGIBLE
from etl.comparison.request.answers import TuningSample
from etl.comparison.request.candidates import Candidate
from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds
from etl.measuring.statistics import Interval, Outcome, paired_ratios, ratio_interval

# Configurations that are measured in rounds, besides the given one.
FINALISTS = 3
# After this many rounds, finalists that are slower than the best one by this factor are not measured any more.
RACING_ROUNDS, BEATEN = 2, 1.05
# Shares of the time until which halving, and the neighbours of the best configuration, may take.
HALVING_SHARE, NEIGHBOURS_SHARE = 0.4, 0.5
MAX_CONFIGURATIONS, MIN_CONFIGURATIONS = 32, 4
# A configuration with too few rounds for an interval must be this much faster than the given one.
UNPROVEN_GAIN = 0.25
# A configuration this much slower than the last that is kept is kept, too: one sample of each may be off by as much.
TIED = 1.03


@dataclass(eq=False)
class Arm:
    """One configuration of a strategy, and what is known of it.

    Attributes
    ----------
    candidate : Candidate
        The way to load.
    changes : dict
        Settings that differ from those that were given.
    samples : list of TuningSample
        All samples.
    scores : list of (float, int)
        Logarithm of its time over the best one's of the same turn, and the batches that it was measured with.
    rounds : dict of int to float
        Seconds of an epoch, by round.
    failed : str
        Why it could not be measured; empty if it could.
    dropped : str
        Why it may not be chosen; empty if it may.
    """

    candidate: Candidate
    changes: Mapping[str, Any] = field(default_factory=dict)
    samples: list[TuningSample] = field(default_factory=list)
    scores: list[tuple[float, int]] = field(default_factory=list)
    rounds: dict[int, float] = field(default_factory=dict)
    failed: str = ""
    dropped: str = ""

    @property
    def score(self) -> float:
        """Mean of the scores, weighted by batches; infinite if there is none."""
        weight = sum(batches for _, batches in self.scores)
        return sum(score * batches for score, batches in self.scores) / weight if weight else math.inf

    @property
    def memory_nbytes(self) -> int:
        """Peak memory; 0 if it was not measured."""
        return max((each.peak_memory for each in self.samples), default=0)


class Search:
    """Finds the fastest of many configurations of a strategy.

    Parameters
    ----------
    take : callable
        Called with an arm and a number of batches; returns a sample from a fresh process. Raises `MeasurementError` if
        the configuration cannot be measured.
    renew : callable
        Called before each round: starts a server with a newly randomized memory layout. All turns before have one
        layout, which is the same for all configurations.
    batches : (int, int)
        Batches to measure a configuration with: at first, and at most.
    deadline : float
        Time of `now` at which the rounds end.
    progress : callable
        Called before each sample with "tune" or "confirm", the samples that were taken, and all that are known of.
    is_allowed : callable
        Called with an arm; returns False if it may not be chosen.
    now : callable
        Clock, in seconds.

    Attributes
    ----------
    was_interrupted : bool
        True if the rounds were interrupted after the first.
    """

    def __init__(
        self,
        given: Arm,
        take: Callable[[Arm, int], TuningSample],
        *,
        renew: Callable[[], None],
        epoch_batches: float,
        batches: tuple[int, int],
        deadline: float,
        seed: int,
        progress: Callable[[str, int, int | None], None],
        is_allowed: Callable[[Arm], bool] = lambda _: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = given
        self._take_sample = take
        self._renew = renew
        self._epoch_batches = epoch_batches
        self._batches, self._max_batches = batches
        self._deadline = deadline
        self._began = now()
        self._seed = seed
        self._progress = progress
        self._is_allowed = is_allowed
        self._now = now
        self._turns = 0
        self._sample_seconds = 0.0
        self.was_interrupted = False

    def measure_given(self) -> int:
        """Measure the given configuration, and return how many configurations there is time for.

        Raises
        ------
        MeasurementError
            If it cannot be measured.
        """
        self._take_turn([self._given], math.inf)
        if self._given.failed:
            raise MeasurementError(self._given.failed, self._given.failed)
        self._given.scores.clear()  # there was nothing to compare it with
        # A turn has half as many samples as the one before, with twice as many batches: starting processes takes half
        # as long, and the batches take as long as before.
        turns = 1 + math.log2(max(1.0, self._max_batches / self._batches))
        room = HALVING_SHARE * (self._deadline - self._began)
        with_room = int(room / ((2 + turns) / 2 * self._sample_seconds))
        return max(MIN_CONFIGURATIONS, min(MAX_CONFIGURATIONS, with_room))

    def halve(self, configurations: Sequence[Arm]) -> list[Arm]:
        """Return the best of `configurations`: measure all on a few batches, half of them on twice as many, and so on.

        Those that there is no time for are left out.
        """
        deadline = self._began + HALVING_SHARE * (self._deadline - self._began)
        alive = list(configurations)
        batches = self._batches
        while True:
            measured = self._take_turn(alive, deadline, batches)
            if not measured:
                break
            alive = self._best(measured, max(FINALISTS, -(-len(measured) // 2)))
            is_last = batches >= self._max_batches
            batches = min(2 * batches, self._max_batches)
            if (len(alive) <= FINALISTS and is_last) or self._now() >= deadline:
                break
        return self._best([each for each in configurations if each.samples], FINALISTS)

    def look_around(self, finalists: Sequence[Arm], neighbours: Callable[[Arm], Iterable[Arm]]) -> list[Arm]:
        """Return finalists among which are the best of the neighbours of the first, measured in one turn with them.

        Parameters
        ----------
        neighbours : callable
            Returns the configurations that differ from one in a setting.
        """
        deadline = self._began + NEIGHBOURS_SHARE * (self._deadline - self._began)
        best = list(finalists)
        looked_at: set[Arm] = set()
        while best and best[0] not in looked_at and self._now() < deadline:
            looked_at.add(best[0])
            near = [each for each in dict.fromkeys(neighbours(best[0])) if not (each.samples or each.failed)]
            with_room = int((deadline - self._now()) / max(self._sample_seconds, 1e-9)) - len(best)
            if not near or with_room < 1:
                break
            random.Random(self._seed).shuffle(near)
            measured = self._take_turn([*best, *near[:with_room]], deadline, self._max_batches)
            best = self._best(list(dict.fromkeys([*measured, *best])), FINALISTS)
        return best

    def confirm(self, finalists: Iterable[Arm]) -> Mapping[Arm, Interval]:
        """Measure the given configuration and the finalists in shuffled rounds until the deadline.

        Returns
        -------
        The ratio of each finalist's wall time to that of the given configuration. After an interruption, it comes from
        the rounds that are complete.
        """
        chosen = [self._given, *(each for each in finalists if each != self._given)]
        chosen = chosen[: self._fit_round(len(chosen))]
        rounds: Rounds[Arm, float] = Rounds(chosen, self._take_round, seed=self._seed, on_failure=self._note_failure)
        longest = 0.0
        try:
            while len(rounds.variants) > 1 and self._given not in rounds.failed:
                started = self._now()
                self._renew()
                rounds.take_round(self._in_the_race(rounds))
                longest = max(longest, self._now() - started)
                if self._now() + longest > self._deadline:
                    break
        except KeyboardInterrupt:
            rounds.drop_unfinished()
            if not rounds.finished:
                raise
            self.was_interrupted = True
        given = rounds.samples[self._given]
        ratios: dict[Arm, Interval] = {}
        for each in rounds.variants:
            each.rounds = dict(rounds.samples[each])
            pairs = paired_ratios(rounds.samples[each], given)
            if each != self._given and pairs:
                ratios[each] = ratio_interval(pairs)
        return ratios

    def _fit_round(self, candidates: int) -> int:
        """Return how many of the candidates a round has time for, at least two; take fewer batches if need be."""
        per_batch = self._given.samples[-1].seconds_per_batch
        left = self._deadline - self._now()
        while candidates * self._max_batches * per_batch > left and self._max_batches > self._batches:
            self._max_batches = max(self._batches, self._max_batches // 2)
        return max(2, min(candidates, int(left / (self._max_batches * per_batch))))

    def _in_the_race(self, rounds: Rounds[Arm, float]) -> list[Arm]:
        """Return the given configuration, and the finalists that may still be the best."""
        finalists = [each for each in rounds.variants if each != self._given]
        if rounds.finished < RACING_ROUNDS:
            return rounds.variants
        medians = {each: statistics.median(rounds.samples[each].values()) for each in finalists}
        limit = BEATEN * min(medians.values())
        return [self._given, *(each for each in finalists if medians[each] <= limit)]

    def _take_round(self, arm: Arm, number: int) -> float:
        self._progress("confirm", number, None)
        arm.samples.append(self._take_sample(arm, self._max_batches))
        return arm.samples[-1].epoch_seconds(self._epoch_batches)

    def _note_failure(self, arm: Arm, error: MeasurementError) -> None:
        arm.failed = error.reason

    def _take_turn(self, arms: Sequence[Arm], deadline: float, batches: int | None = None) -> list[Arm]:
        """Measure each of `arms` once, in random order, until the deadline; return those that were measured."""
        batches = batches or self._batches
        order = list(arms)
        random.Random(f"{self._seed} {self._turns}").shuffle(order)
        self._turns += 1
        seconds: dict[Arm, float] = {}
        started = self._now()
        for number, each in enumerate(order):
            if self._now() >= deadline:
                break
            self._progress("tune", number, len(order))
            try:
                each.samples.append(self._take_sample(each, batches))
            except MeasurementError as error:
                each.failed = error.reason
                continue
            seconds[each] = each.samples[-1].epoch_seconds(self._epoch_batches)
        self._sample_seconds = (self._now() - started) / max(1, len(seconds))
        best = min(seconds.values(), default=1.0)
        for each, value in seconds.items():
            each.scores.append((math.log(value / best), batches))
        return list(seconds)

    def _best(self, arms: Sequence[Arm], count: int) -> list[Arm]:
        """Return the `count` best of `arms`, the best first, and those that are as good as the last of them."""
        allowed = [each for each in arms if not each.failed and self._is_allowed(each)]
        ranked = sorted(allowed, key=lambda each: each.score)
        if len(ranked) <= count:
            return ranked
        limit = ranked[count - 1].score + math.log(TIED)
        return [each for each in ranked[: count + count // 2] if each.score <= limit]


def choose(
    given: Arm,
    ratios: Mapping[Arm, Interval],
    simplicity: Callable[[Arm], tuple[int, int]],
    may_keep: bool = True,
) -> Arm:
    """Return the best arm: the simplest of those that are not slower than the fastest by a relevant amount.

    The given one wins unless another has been shown to be faster, or is faster by far if there are too few rounds for
    an interval.

    Parameters
    ----------
    ratios : dict
        Wall time of the others over that of `given`.
    simplicity : callable
        Returns a sort key that puts the simplest first.
    may_keep : bool
        True if the given one exceeds no limit. Otherwise the best of the others is chosen, whatever it gains.
    """
    better = {each: ratio.estimate for each, ratio in ratios.items() if not may_keep or _is_faster(ratio)}
    if not better:
        return given
    fastest = min(better.values())
    as_good = [each for each, estimate in better.items() if estimate <= fastest * (1 + NEGLIGIBLE)]
    return min(as_good, key=simplicity)


def _is_faster(ratio: Interval) -> bool:
    if ratio.high is None:
        return ratio.estimate < 1 - UNPROVEN_GAIN
    return ratio.outcome() is Outcome.FASTER and ratio.estimate < 1 - NEGLIGIBLE
