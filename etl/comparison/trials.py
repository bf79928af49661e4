"""Short trials that choose how a strategy splits its CPUs between compute and loading."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from etl.comparison.candidates import Threads
from etl.measuring.clock import EpochTimes
from etl.measuring.rounds import Rounds

# Trials of each split: the maximum, and the minimum to choose a split at all.
MAX_TRIALS, MIN_TRIALS = 5, 3
# The first batch, one more while the prefetcher fills up, and two that are timed.
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
        Time of `now`. After the first turn, no turn begins that would end later if it took as long per batch as the
        turn before.
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
    """Estimate the seconds per batch in the middle of an epoch from its first batches.

    The first batch is left out, and so are up to `prefetch_size` more, in which the prefetcher fills up, but at most a
    third of the batches.
    """
    if times.batches == 1:
        return times.wall.total
    last_left_out = min(prefetch_size, (times.batches - 1) // 3)
    seconds = times.done[-1] - times.done[last_left_out]
    return float(seconds) / (times.batches - 1 - last_left_out)
