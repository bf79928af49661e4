"""The search for the best configuration: a race of configurations that alternate within one process, round by round."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.comparison.judge.recommendation import NEGLIGIBLE
from etl.comparison.request.answers import TuningSample
from etl.comparison.request.candidates import Candidate
from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import balanced_order
from etl.measuring.statistics import MIN_ROUNDS, Interval, Outcome, paired_ratios, ratio_interval
from etl.units import bounds

# Shares of the time for the first round, and until which new configurations may enter the race.
FIRST_SHARE, ENTRY_SHARE = 0.2, 0.5
MAX_CONFIGURATIONS, MIN_CONFIGURATIONS = 32, 4
# A configuration leaves the race if it is slower than the best by more than `NEGLIGIBLE` with this confidence, from
# five rounds on. The interval has two sides, so one that is not slower leaves with a probability of at most 5%.
RACING_CONFIDENCE = 0.9
# A configuration with too few rounds for an interval must be this much faster than another one.
UNPROVEN_GAIN = 0.25
# One whose first batches take this many times as long as those of the given one is not measured any further.
TOO_SLOW = 4.0


@dataclass(eq=False)
class Arm:
    """One configuration of a strategy, and what is known of it.

    Attributes
    ----------
    changes : dict
        Settings that differ from those that were given.
    rounds : dict of int to float
        Seconds of an epoch, by round: the geometric mean of its two turns.
    failed : str
        Why it could not be measured; empty if it could.
    dropped : str
        Why it may not be chosen; empty if it may.
    left : str
        Why it left the race; empty if it was measured until the end.
    """

    candidate: Candidate
    changes: Mapping[str, Any] = field(default_factory=dict)
    samples: list[TuningSample] = field(default_factory=list)
    rounds: dict[int, float] = field(default_factory=dict)
    failed: str = ""
    dropped: str = ""
    left: str = ""

    @property
    def memory_nbytes(self) -> int:
        """Peak memory; 0 if it was not measured. Of several samples the least: others are left with some of before."""
        return min((each.peak_memory for each in self.samples), default=0)

    def ratio_to(self, other: Arm) -> Interval | None:
        """Return its time over that of `other`, paired within rounds; None if they have none in common."""
        pairs = paired_ratios(self.rounds, other.rounds)
        return ratio_interval(pairs) if pairs else None


# Yields a sample of each arm.
Take = Callable[[Sequence[Arm]], Generator[TuningSample, None, None]]


class Search:
    """Finds the fastest of many configurations of a strategy.

    In each round every configuration in the race has two turns in one process, in the order A B C C B A: noise and a
    steady drift of the machine affect all alike, and so does the memory layout of the process.

    Parameters
    ----------
    take : callable
        Called with arms; yields a sample of each, in their order, from one process. Raises `MeasurementError` if the
        next one cannot be measured.
    look : callable or None
        As `take`, for samples of a few batches each; None if they would take about as long as those of `take`.
    renew : callable
        Called before each round: starts a server with a newly randomized memory layout.
    epoch_batches : float
        Batches of an epoch of the whole source.
    deadline : float
        Time of `now` at which the rounds end.
    progress : callable
        Called before each sample with "tune" or "confirm", the samples that were taken, and all that are known of.
    is_eligible : callable
        Called with an arm that was measured, before others leave because it is faster, and before the last rounds;
        returns False if it may not be chosen.
    now : callable
        Clock, in seconds.

    Attributes
    ----------
    was_interrupted : bool
        True if `confirm` was interrupted.
    """

    def __init__(
        self,
        given: Arm,
        take: Take,
        *,
        look: Take | None,
        renew: Callable[[], None],
        epoch_batches: float,
        deadline: float,
        seed: int,
        progress: Callable[[str, int, int | None], None],
        is_eligible: Callable[[Arm], bool] = lambda _: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = given
        self._take_samples = take
        self._look_at = look
        self._renew = renew
        self._epoch_batches = epoch_batches
        self._deadline = deadline
        self._began = now()
        self._seed = seed
        self._progress = progress
        self._is_eligible = is_eligible
        self._now = now
        self._rounds = 0
        self._turn_seconds = 0.0
        self._racing: list[Arm] = [given]
        self.was_interrupted = False

    def measure_given(self) -> int:
        """Measure the given configuration, and return how many configurations the first round has time for."""
        started = self._now()
        self._progress("tune", 0, None)
        self._given.samples += self._take_samples([self._given])
        self._turn_seconds = self._now() - started
        room = FIRST_SHARE * (self._deadline - self._began)
        return max(MIN_CONFIGURATIONS, min(MAX_CONFIGURATIONS, int(room / (2 * self._turn_seconds))))

    def explore(self, first: Iterable[Arm], neighbours: Callable[[Arm], Iterable[Arm]]) -> list[Arm]:
        """Return the fastest configurations, the best first: race `first`, and the `neighbours` of whichever leads."""
        self._racing = list(dict.fromkeys([self._given, *first]))
        until = self._began + ENTRY_SHARE * (self._deadline - self._began)
        looked_at: set[Arm] = set()
        with_room = int((self._deadline - self._now()) / (2 * self._turn_seconds))
        self._racing = self._racing[: max(2, with_room)]
        while self._now() < until and self._race("tune") and self._racing:
            leader = next(filter(self._is_eligible, self._ranked()), self._given)
            near = [each for each in dict.fromkeys(neighbours(leader)) if not (each.samples or each.failed)]
            if leader in looked_at or not near:
                break
            looked_at.add(leader)
            random.Random(self._seed).shuffle(near)
            room = int((until - self._now()) / (2 * self._turn_seconds)) - len(self._racing)
            self._racing += near[: max(0, room)]
        return self._rivals()

    def confirm(self, finalists: Iterable[Arm]) -> list[Arm]:
        """Race the given configuration and the finalists, the best of which come first, until the deadline.

        Those for which there is no time to become certain leave first. Return those that are left, without the given
        one. After an interruption, they have the rounds that are complete.
        """
        found: list[Arm] = []
        try:
            for each in finalists:
                with_room = int((self._deadline - self._now()) / (2 * MIN_ROUNDS * self._turn_seconds)) - 1
                if len(found) >= max(1, with_room):
                    each.left = "there was no time for more rounds, and others were faster until then"
                elif self._is_eligible(each):
                    found.append(each)
        except KeyboardInterrupt:
            self.was_interrupted = True
        self._racing = [self._given, *found]
        while len(self._racing) > 1 and self._race("confirm"):
            pass
        return self._rivals()

    def _race(self, phase: str) -> bool:
        """Take a round, let those leave that are beaten, and return False if there is no time, or nothing to race."""
        racing = self._racing
        if self._rounds and self._now() + 2 * len(racing) * self._turn_seconds > self._deadline:
            return False
        if len(racing) < 2 or self._now() >= self._deadline or self._given.failed or self.was_interrupted:
            return False
        order = [racing[place] for place in balanced_order(len(racing), self._rounds, self._seed)]
        try:
            self._renew()
            self._leave_out_slow_ones([each for each in order if not each.samples], phase)
            order = [each for each in order if each in self._racing and not each.failed]
            seconds: dict[Arm, list[float]] = {each: [] for each in order}
            started, taken = self._now(), 0
            for each, sample in self._take_turns([*order, *order[::-1]], phase, self._take_samples):
                each.samples.append(sample)
                seconds[each].append(sample.epoch_seconds(self._epoch_batches))
                taken += 1
        except KeyboardInterrupt:
            if phase == "tune":
                raise
            self.was_interrupted = True
            return False
        for each in order:
            if not each.failed:
                each.rounds[self._rounds] = statistics.geometric_mean(seconds[each])
        self._rounds += 1
        self._turn_seconds = (self._now() - started) / max(1, taken)
        ranked = self._ranked()
        refused = list(itertools.takewhile(lambda each: not self._is_eligible(each), ranked))
        for each in ranked[len(refused) + 1 :]:
            if each is not self._given:
                each.left = _why_beaten(each, ranked[len(refused)])
        # The given one stays, since others are compared with it; if it may not be chosen, none leaves because of it.
        self._racing = [
            each for each in racing if each in ranked and (each is self._given or not (each in refused or each.left))
        ]
        return True

    def _leave_out_slow_ones(self, new: Sequence[Arm], phase: str) -> None:
        """Let those leave whose first batches take `TOO_SLOW` times as long as those of the given one.

        Whole turns of a few such ones would take most of the time.
        """
        if self._look_at is None or not new:
            return
        looks = dict(self._take_turns([self._given, *new], phase, self._look_at))
        for each in new:
            if each in looks and self._given in looks:
                ratio = looks[each].seconds_per_batch / looks[self._given].seconds_per_batch
                if ratio > TOO_SLOW:
                    each.left = f"its first batches took {ratio:.1f} times as long as those of the given configuration"
                    each.samples.append(looks[each])
                    self._racing.remove(each)

    def _take_turns(self, arms: Sequence[Arm], phase: str, take: Take) -> Iterator[tuple[Arm, TuningSample]]:
        """Yield each arm with a sample. After one that fails, the others go on in a new process."""
        left = list(arms)
        while left:
            try:
                with contextlib.closing(take(list(left))) as samples:
                    while left:
                        done = (len(arms) - len(left), len(arms)) if phase == "tune" else (self._rounds, None)
                        self._progress(phase, *done)
                        sample = next(samples)
                        yield left.pop(0), sample
            except MeasurementError as error:
                left[0].failed = error.reason
                left = [each for each in left if not each.failed]

    def _rivals(self) -> list[Arm]:
        """Return the arms in the race that have rounds in common with the given one, the fastest first."""
        return [each for each in self._ranked() if each is not self._given and each.ratio_to(self._given) is not None]

    def _ranked(self) -> list[Arm]:
        """Return the arms in the race, the fastest first: by their ratios to the given one."""
        ratios = {each: each.ratio_to(self._given) for each in self._racing if not each.failed}
        return sorted(ratios, key=lambda each: math.inf if (ratio := ratios[each]) is None else ratio.estimate)


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


def _why_beaten(arm: Arm, best: Arm) -> str:
    """Return why `arm` is slower than the best for certain; nothing if it may be as fast."""
    pairs = paired_ratios(arm.rounds, best.rounds)
    ratio = ratio_interval(pairs, RACING_CONFIDENCE) if pairs else None
    if ratio is None:
        return ""
    if ratio.low is None:
        is_far = min(pairs) > 1 / (1 - UNPROVEN_GAIN)
        return f"it took {min(pairs):.2f} times as long as the best, or more, in each of its rounds" if is_far else ""
    if ratio.low <= 1 + NEGLIGIBLE:
        return ""
    return f"it took {ratio.estimate:.2f} times as long as the best ({RACING_CONFIDENCE:.0%} interval {bounds(ratio)})"
