"""Measuring in rounds: the rounds of a comparison, and before them short trials of CPU splits."""

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

# Loading alone is measured only in the first rounds: no claim is based on it.
ROUNDS_WITH_ETL_ALONE = 3
# With fewer rounds than an interval needs, metrics are shown, but no difference is claimed.
MIN_ROUNDS_SHOWN = 3

Samples = Mapping[Candidate, Mapping[int, Sample]]


class _NoServerError(MeasurementError):
    """The server of a round could not be started."""


class ComparisonRounds:
    """Rounds of a comparison. Each round has its own server.

    Once there are enough rounds for intervals, the remaining time goes to the candidates with the widest intervals. A
    candidate that fails is left out of all later rounds, and its samples are dropped. If the reference fails, `run`
    raises.

    Parameters
    ----------
    candidates : sequence of Candidate
        Candidates to compare. The first is the reference.
    loading_only : sequence of Candidate
        Candidates of which only loading is measured, in the first rounds.
    processes : Processes
        Takes the samples.
    rounds : int or None
        Number of rounds; None for as many as there is time for.
    deadline : float
        Time of `time.monotonic`. No round begins that would end later, judging by the rounds before it.
    hard_deadline : float
        The deadline that holds while there are too few rounds for an interval.
    seed : int
        Seed for the order within each round.
    progress : callable
        Called with the number of completed rounds after each sample.
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
        """Reason if a round could not begin, which ended the comparison; otherwise empty."""

    @property
    def done(self) -> int:
        """Number of completed rounds."""
        return self._rounds.finished

    @property
    def failed(self) -> dict[Candidate, str]:
        """Candidates that failed, with the reason."""
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
        """Take rounds until there are enough, or there is no time for another.

        After at least one complete round, an interruption or a server that cannot be started ends the rounds early.
        Before that it is raised.
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
    def _begin(self, number: int) -> Iterator[None]:  # noqa: ARG002 - all rounds begin alike
        """Start a new server for each round: samples from one server are a single repetition."""
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
        """Return the candidates of the next round.

        These are all candidates until each has enough samples for an interval, then the reference and the half with the
        widest intervals.
        """
        samples = self.samples
        if self._wanted is not None or self.done < MIN_ROUNDS:
            return [*samples, *(self._loading_only if self.done < MIN_ROUNDS_SHOWN else [])]
        others = [each for each in samples if each != self._reference]
        widths = ratio_widths(samples, self._reference, others)
        widest = sorted(others, key=lambda each: widths[each], reverse=True)
        return [self._reference, *widest[: -(-len(others) // 2)]]


def ratio_widths(samples: Samples, reference: Candidate, others: Sequence[Candidate]) -> Mapping[Candidate, float]:
    """Return the widths of the intervals of the wall time ratio, as factors.

    Parameters
    ----------
    samples : dict
        Samples by candidate and round.
    reference : Candidate
        The denominator.
    others : sequence of Candidate
        The numerators.
    """
    below = walls(samples[reference])
    return {each: ratio_interval(paired_ratios(walls(samples[each]), below)).width for each in others}


def walls(samples: Mapping[int, Sample]) -> dict[int, float]:
    """Return the wall time of each round, for the measured records."""
    return {number: sample.epoch.wall.total for number, sample in samples.items()}


# Trials of each split, taken in turns: at most, and the minimum from which a split is chosen.
MAX_TRIALS, MIN_TRIALS = 5, 3
# The first batch, one during which prefetching settles, and two that are timed.
MIN_TRIAL_BATCHES = 4
# A longer trial would add little; the time is better spent on the rounds.
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
    """Run short trials of each CPU split, in shuffled turns.

    Parameters
    ----------
    splits : sequence of Threads
        Splits to try.
    run : callable
        Called with a split and a number of batches; returns seconds per batch.
    max_batches : int
        Batches of an epoch.
    deadline : float
        Time of `now`. After the first turn, no turn begins that would end later, judging by the turn before it.
    seed : int
        Seed for the order within each turn.
    now : callable
        Clock, in seconds.

    Returns
    -------
    Seconds per batch of each split, one value per turn.
    """
    batches = min(MIN_TRIAL_BATCHES, max_batches)
    rounds = Rounds(splits, lambda split, _: run(split, batches), seed=seed)
    for turn in range(MAX_TRIALS):
        started = now()
        rounds.take_round()
        seconds = (now() - started) / batches
        turns_left = MAX_TRIALS - turn - 1
        if turns_left:
            # Plan only half of the remaining time: a turn may take longer than the one before it.
            turn_seconds = min((deadline - now()) / turns_left / 2, len(splits) * MAX_TRIAL_SECONDS)
            with_room = turn_seconds / max(seconds, 1e-9)
            batches = min(max(MIN_TRIAL_BATCHES, int(with_room)), max_batches)
            if now() + seconds * batches > deadline:
                break
    return {split: list(each.values()) for split, each in rounds.samples.items()}


def choose_split(trials: SplitSeconds) -> Threads | None:
    """Return the split with the lowest median; None if any split has fewer than `MIN_TRIALS` trials."""
    if min(map(len, trials.values())) < MIN_TRIALS:
        return None
    return min(trials, key=lambda split: statistics.median(trials[split]))


def seconds_per_batch(times: EpochTimes, prefetch_size: int) -> float:
    """Estimate seconds per batch in the middle of an epoch from its first batches.

    It leaves out the first batch and up to `prefetch_size` more while the prefetcher fills up, at most a third of all.
    """
    if times.batches == 1:
        return times.wall.total
    last_left_out = min(prefetch_size, (times.batches - 1) // 3)
    seconds = times.done[-1] - times.done[last_left_out]
    return float(seconds) / (times.batches - 1 - last_left_out)
