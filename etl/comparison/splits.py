"""Trials of how a strategy that loads ahead splits its CPUs between compute and loading."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from etl.comparison.threads import Threads
from etl.measuring.clock import EpochTimes
from etl.measuring.rounds import Rounds

# All splits are tried in turns: so many times each, if there is time. From fewer nothing is concluded.
MAX_TRIALS, MIN_TRIALS = 5, 3
# The first batch, one in which prefetching settles, and two that are timed.
MIN_BATCHES = 4
# A longer trial would tell little more, and its time is better spent on the rounds.
LONGEST_TRIAL_SECONDS = 1.0

SplitSeconds = Mapping[Threads, Sequence[float]]


def take_trials(
    splits: Sequence[Threads],
    run: Callable[[Threads, int], float],
    *,
    most_batches: int,
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
    most_batches : int
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
    batches = min(MIN_BATCHES, most_batches)
    rounds = Rounds(splits, lambda split, _: run(split, batches), seed=seed)
    for turn in range(MAX_TRIALS):
        started = now()
        rounds.take_round()
        seconds = (now() - started) / batches
        turns_left = MAX_TRIALS - turn - 1
        if turns_left:
            # Half of the time that is left is planned: a turn may take longer than the one before it.
            turn_seconds = min((deadline - now()) / turns_left / 2, len(splits) * LONGEST_TRIAL_SECONDS)
            with_room = turn_seconds / max(seconds, 1e-9)
            batches = min(max(MIN_BATCHES, int(with_room)), most_batches)
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
