"""The rounds of a comparison: how many there are, and in which of them each candidate is measured.

Trials of how a strategy that loads ahead splits its CPUs between compute and loading.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from etl.comparison.processes import Processes
from etl.comparison.samples import LoadingSample, Sample
from etl.comparison.settings import Candidate, Threads
from etl.measuring.clock import EpochTimes
from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds
from etl.measuring.statistics import MIN_ROUNDS, paired_ratios, ratio_interval

# Loading alone is measured in so many rounds: no claim rests on its ratio.
ROUNDS_WITH_ETL_ALONE = 3
# If there is time for no more, the figures are shown, and no difference is claimed.
MIN_ROUNDS_SHOWN = 3

Samples = Mapping[Candidate, Mapping[int, Sample]]


class _NoServerError(MeasurementError):
    """A round could not begin."""


class ComparisonRounds:
    """Measures candidates in rounds, each round in a server of its own.

    After the first rounds, the time that is left goes to the candidates whose ratios are the least certain. A candidate
    that cannot be measured is left out from then on, with its samples; the first one may not fail.

    Parameters
    ----------
    candidates : sequence of Candidate
        What is compared. The first is what the others are compared with.
    loading_only : sequence of Candidate
        Those of which only loading is measured, in the first rounds.
    processes : Processes
        Takes the samples.
    rounds : int or None
        How many; None for as many as there is time for.
    deadline : float
        The time of `time.monotonic` that no round may pass by what the rounds before it took.
    hard_deadline : float
        The same while there are too few rounds for an interval.
    seed : int
        Of the order in each round.
    progress : callable
        Is called with the rounds that are done, after each sample.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        loading_only: Sequence[Candidate],
        processes: Processes,
        *,
        rounds: int | None,
        deadline: float,
        hard_deadline: float,
        seed: int,
        progress: Callable[[int], None],
    ) -> None:
        self._reference = candidates[0]
        self._loading_only = [each for each in loading_only if each not in candidates]
        self._processes = processes
        self._wanted = rounds
        self._deadline = deadline
        self._hard_deadline = hard_deadline
        self._progress = progress
        self._seconds: dict[Candidate, float] = {}
        self._start_seconds = 0.0
        self._rounds: Rounds[Candidate, Sample | LoadingSample] = Rounds(
            [*candidates, *self._loading_only],
            self._take,
            seed=seed,
            begin=self._begin,
            on_failure=self._raise_if_reference,
        )
        self.stopped_early = False
        self.no_server = ""
        """Why a round could not begin, if that ended the comparison."""

    @property
    def done(self) -> int:
        """Rounds that were measured to their end."""
        return self._rounds.finished

    @property
    def failed(self) -> dict[Candidate, str]:
        """The reason, by candidate that was left out."""
        return self._rounds.failed

    @property
    def samples(self) -> Samples:
        """Samples by candidate and round."""
        return {
            each: {number: one for number, one in self._rounds.samples[each].items() if isinstance(one, Sample)}
            for each in self._rounds.variants
            if each not in self._loading_only
        }

    @property
    def loads(self) -> Mapping[Candidate, Mapping[int, LoadingSample]]:
        """Samples of loading alone, by candidate and round."""
        return {
            each: {number: one for number, one in self._rounds.samples[each].items() if isinstance(one, LoadingSample)}
            for each in self._rounds.variants
            if each in self._loading_only
        }

    def run(self) -> None:
        """Measure.

        An interruption, or a server that cannot be started, ends it with what there is, if that is a whole round.
        Otherwise it is raised.
        """
        try:
            while self._has_time():
                self._rounds.take_round(self._choose())
        except (KeyboardInterrupt, _NoServerError) as error:
            if not self.done:
                raise
            self.stopped_early = True
            self.no_server = str(error)
            self._rounds.drop_unfinished()

    @contextmanager
    def _begin(self, number: int) -> Iterator[None]:  # noqa: ARG002 - all begin alike
        """Have a new server for each round: the samples of one are a single repetition."""
        started = time.monotonic()
        try:
            self._processes.renew()
        except MeasurementError as error:
            raise _NoServerError(str(error), error.text) from error
        self._start_seconds = time.monotonic() - started
        yield

    def _take(self, candidate: Candidate, number: int) -> Sample | LoadingSample:
        started = time.monotonic()
        try:
            if candidate in self._loading_only:
                return self._processes.load(candidate)
            return self._processes.measure(candidate, with_etl_alone=number < ROUNDS_WITH_ETL_ALONE)
        finally:
            self._seconds[candidate] = time.monotonic() - started
            self._progress(self.done)

    def _raise_if_reference(self, candidate: Candidate, error: MeasurementError) -> None:
        if candidate == self._reference:
            raise error

    def _has_time(self) -> bool:
        if self._wanted is not None:
            return self.done < self._wanted
        if self.done < MIN_ROUNDS_SHOWN:
            return True
        needed = self._start_seconds + sum(self._seconds[each] for each in self._choose())
        return time.monotonic() + needed <= (self._hard_deadline if self.done < MIN_ROUNDS else self._deadline)

    def _choose(self) -> list[Candidate]:
        """Return all, until each has enough for an interval; then the half whose intervals are the widest."""
        samples = self.samples
        if self._wanted is not None or self.done < MIN_ROUNDS:
            return [*samples, *(self._loading_only if self.done < MIN_ROUNDS_SHOWN else [])]
        others = [each for each in samples if each != self._reference]
        widths = ratio_widths(samples, self._reference, others)
        widest = sorted(others, key=lambda each: widths[each], reverse=True)
        return [self._reference, *widest[: -(-len(others) // 2)]]


def ratio_widths(samples: Samples, reference: Candidate, others: Sequence[Candidate]) -> Mapping[Candidate, float]:
    """Return for each of `others` how wide the interval of its wall time over the reference's is, as a factor."""
    below = walls(samples[reference])
    return {each: ratio_interval(paired_ratios(walls(samples[each]), below)).width for each in others}


def walls(samples: Mapping[int, Sample]) -> dict[int, float]:
    """Return the wall time of each round, of the records that were measured."""
    return {number: sample.epoch.wall.total for number, sample in samples.items()}


# All splits are tried in turns: so many times each, if there is time. From fewer nothing is concluded.
MAX_TRIALS, MIN_TRIALS = 5, 3
# The first batch, one in which prefetching settles, and two that are timed.
MIN_TRIAL_BATCHES = 4
# A longer trial would tell little more, and its time is better spent on the rounds.
MAX_TRIAL_SECONDS = 1.0

SplitSeconds = Mapping[Threads, Sequence[float]]


def take_trials(
    splits: Sequence[Threads],
    run: Callable[[Threads, int], float],
    *,
    max_batches: int,
    deadline: float,
    seed: int,
    now: Callable[[], float] = time.perf_counter,
) -> dict[Threads, list[float]]:
    """Run short trials of each split in shuffled turns.

    Parameters
    ----------
    splits : sequence of Threads
        What is tried.
    run : function
        Is called with a split and a number of batches, and returns the seconds that one of them takes.
    max_batches : int
        The batches of an epoch.
    deadline : float
        The time, as `now` tells it, after which no turn may end, as far as the turn before it tells. The first turn
        always takes place.
    seed : int
        Of the order within each turn.
    now : function
        A clock.

    Returns
    -------
    The seconds of a batch by split, one for each turn.
    """
    batches = min(MIN_TRIAL_BATCHES, max_batches)
    rounds = Rounds(splits, lambda split, _: run(split, batches), seed=seed)
    for turn in range(MAX_TRIALS):
        started = now()
        rounds.take_round()
        seconds = (now() - started) / batches
        turns_left = MAX_TRIALS - turn - 1
        if turns_left:
            # Half of the time that is left is planned: a turn may take longer than the one before it.
            turn_seconds = min((deadline - now()) / turns_left / 2, len(splits) * MAX_TRIAL_SECONDS)
            with_room = turn_seconds / max(seconds, 1e-9)
            batches = min(max(MIN_TRIAL_BATCHES, int(with_room)), max_batches)
            if now() + seconds * batches > deadline:
                break
    return {split: list(each.values()) for split, each in rounds.samples.items()}


def choose(trials: SplitSeconds) -> Threads | None:
    """Return the split with the lowest median, or None if there are fewer than `MIN_TRIALS` of any."""
    if min(map(len, trials.values())) < MIN_TRIALS:
        return None
    return min(trials, key=lambda split: statistics.median(trials[split]))


def seconds_per_batch(times: EpochTimes, prefetch_size: int) -> float:
    """Return the seconds of a batch in the middle of an epoch, from the first batches of one.

    Left out are the first batch, and up to `prefetch_size` more, in which loading gets ahead: at most a third of them.
    """
    if times.batches == 1:
        return times.wall.total
    last_left_out = min(prefetch_size, (times.batches - 1) // 3)
    seconds = times.done[-1] - times.done[last_left_out]
    return float(seconds) / (times.batches - 1 - last_left_out)
