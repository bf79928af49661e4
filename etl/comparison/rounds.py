"""Rounds: in each, strategies are measured once in shuffled order; the time that is left goes where it is needed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etl.comparison.candidate import Candidate
from etl.comparison.processes import MeasurementError
from etl.measuring.statistics import MIN_ROUNDS, paired_ratios, ratio_interval

# Loading alone is measured in so many rounds: no claim rests on its ratio.
ROUNDS_WITH_ETL_ALONE = 3
# Where there is time for no more, the figures are shown, and no difference is claimed.
FEWEST_WITHOUT_CLAIM = 3

Samples = dict[Candidate, dict[int, dict[str, Any]]]


class Rounds:
    """Measures `candidates`, the first being what the others are compared with, and in the first rounds how `extras`
    load.

    `measure(candidate, with_etl_alone)` and `load(extra)` return samples. A candidate for which they raise
    `MeasurementError` is left out from then on, with its samples, and `failed` says why; of the reference it is raised.
    Rounds go on until there were `rounds`, or until `deadline` would pass in the next one; `latest` where there are too
    few for an interval as yet (both times of `time.monotonic`). `samples` and `loads` have those of each by number of
    the round.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        extras: Sequence[Candidate],
        measure: Callable[[Candidate, bool], dict[str, Any]],
        load: Callable[[Candidate], dict[str, Any]],
        *,
        rounds: int | None,
        deadline: float,
        latest: float,
        seed: int,
        progress: Callable[[int, int | None], None],
    ) -> None:
        self._candidates = list(candidates)
        self._extras = [each for each in extras if each not in candidates]
        self._measure = measure
        self._load = load
        self._rounds = rounds
        self._deadline = deadline
        self._latest = latest
        self._random = random.Random(seed)
        self._progress = progress
        self._seconds: dict[Candidate, float] = {}
        self.samples: Samples = {each: {} for each in self._candidates}
        self.loads: Samples = {each: {} for each in self._extras}
        self.failed: dict[Candidate, str] = {}
        self.done = 0
        self.stopped_early = False

    def run(self) -> None:
        """Measure. An interruption ends it with what there is, if that is a whole round; otherwise it is raised."""
        try:
            while self._has_time():
                chosen = self._choose()
                self._random.shuffle(chosen)
                for candidate in chosen:
                    started = time.monotonic()
                    try:
                        self._take(candidate)
                    except MeasurementError as error:
                        if candidate == self._candidates[0]:
                            raise
                        self._leave_out(candidate, str(error))
                    self._seconds[candidate] = time.monotonic() - started
                    self._progress(self.done, self._rounds)
                self.done += 1
        except KeyboardInterrupt:
            if not self.done:
                raise
            self.stopped_early = True
            for each in (*self.samples.values(), *self.loads.values()):  # of the round that was cut off
                each.pop(self.done, None)

    def _take(self, candidate: Candidate) -> None:
        if candidate in self.loads:
            self.loads[candidate][self.done] = self._load(candidate)
        else:
            with_etl_alone = len(self.samples[candidate]) < ROUNDS_WITH_ETL_ALONE
            self.samples[candidate][self.done] = self._measure(candidate, with_etl_alone)

    def _leave_out(self, candidate: Candidate, reason: str) -> None:
        self.failed[candidate] = reason
        for each in (self._candidates, self._extras):
            if candidate in each:
                each.remove(candidate)
        self.samples.pop(candidate, None)
        self.loads.pop(candidate, None)

    def _has_time(self) -> bool:
        if self._rounds is not None:
            return self.done < self._rounds
        if self.done < FEWEST_WITHOUT_CLAIM:
            return True
        needed = sum(self._seconds[each] for each in self._choose())
        return time.monotonic() + needed <= (self._latest if self.done < MIN_ROUNDS else self._deadline)

    def _choose(self) -> list[Candidate]:
        """All, until each has enough for an interval; then the half whose intervals are the widest."""
        extras = self._extras if self.done < FEWEST_WITHOUT_CLAIM else []
        if self._rounds is not None or self.done < MIN_ROUNDS:
            return [*self._candidates, *extras]
        reference, *others = self._candidates
        widths = ratio_widths(self.samples, reference, others)
        widest = sorted(others, key=lambda each: widths[each], reverse=True)
        return [reference, *widest[: max(1, -(-len(others) // 2))]] if others else [reference]


def ratio_widths(samples: Samples, reference: Candidate, others: Sequence[Candidate]) -> Mapping[Candidate, float]:
    """How wide the interval of the ratio of wall times to the reference's is, for each of `others`."""
    below = walls(samples[reference])
    return {each: ratio_interval(paired_ratios(walls(samples[each]), below)).width for each in others}


def walls(samples: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """The wall time of each round, of the records that were measured."""
    return {number: float(sum(sample["wall"])) for number, sample in samples.items()}
