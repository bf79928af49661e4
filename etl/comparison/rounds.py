"""The rounds of a comparison: how many there are, and in which of them each candidate is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from etl.comparison.candidate import Candidate
from etl.comparison.processes import Processes
from etl.comparison.samples import Loads, Sample
from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds
from etl.measuring.statistics import MIN_ROUNDS, paired_ratios, ratio_interval

# Loading alone is measured in so many rounds: no claim rests on its ratio.
ROUNDS_WITH_ETL_ALONE = 3
# If there is time for no more, the figures are shown, and no difference is claimed.
FEWEST_WITHOUT_CLAIM = 3

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
    extras : sequence of Candidate
        Those of which only loading is measured, in the first rounds.
    processes : Processes
        Takes the samples.
    rounds : int or None
        How many; None for as many as there is time for.
    deadline : float
        The time of `time.monotonic` that no round may pass by what the rounds before it took.
    latest : float
        The same while there are too few rounds for an interval.
    seed : int
        Of the order in each round.
    progress : callable
        Is called with the rounds that are done, after each sample.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        extras: Sequence[Candidate],
        processes: Processes,
        *,
        rounds: int | None,
        deadline: float,
        latest: float,
        seed: int,
        progress: Callable[[int], None],
    ) -> None:
        self._reference = candidates[0]
        self._extras = [each for each in extras if each not in candidates]
        self._processes = processes
        self._wanted = rounds
        self._deadline = deadline
        self._latest = latest
        self._progress = progress
        self._seconds: dict[Candidate, float] = {}
        self._start_seconds = 0.0
        self._rounds: Rounds[Candidate, Sample | Loads] = Rounds(
            [*candidates, *self._extras],
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
            if each not in self._extras
        }

    @property
    def loads(self) -> Mapping[Candidate, Mapping[int, Loads]]:
        """Samples of loading alone, by candidate and round."""
        return {
            each: {number: one for number, one in self._rounds.samples[each].items() if isinstance(one, Loads)}
            for each in self._rounds.variants
            if each in self._extras
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

    def _take(self, candidate: Candidate, number: int) -> Sample | Loads:
        started = time.monotonic()
        try:
            if candidate in self._extras:
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
        if self.done < FEWEST_WITHOUT_CLAIM:
            return True
        needed = self._start_seconds + sum(self._seconds[each] for each in self._choose())
        return time.monotonic() + needed <= (self._latest if self.done < MIN_ROUNDS else self._deadline)

    def _choose(self) -> list[Candidate]:
        """Return all, until each has enough for an interval; then the half whose intervals are the widest."""
        samples = self.samples
        if self._wanted is not None or self.done < MIN_ROUNDS:
            return [*samples, *(self._extras if self.done < FEWEST_WITHOUT_CLAIM else [])]
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
