"""The rounds of a comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from etl.comparison.candidates import Candidate
from etl.comparison.processes import Processes
from etl.comparison.samples import LoadingSample, Sample
from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds
from etl.measuring.statistics import MIN_ROUNDS, paired_ratios, ratio_interval

# At least this many rounds are taken, however long they take. They are too few for an interval: metrics are shown, but
# no difference is claimed.
MIN_ROUNDS_SHOWN = 3

Samples = Mapping[Candidate, Mapping[int, Sample]]


class _NoServerError(MeasurementError):
    """The server of a round could not be started."""


class ComparisonRounds:
    """The rounds of a comparison, each with its own server.

    Once there are enough rounds for intervals, later rounds measure only the reference and the half of the candidates
    with the widest intervals. A candidate that fails is left out of all later rounds, and its samples are dropped. If
    it was the reference, the next one is. If all fail, `run` raises the last `MeasurementError`.

    Parameters
    ----------
    candidates : sequence of Candidate
        Candidates to compare. The first is the reference.
    loading_only : sequence of Candidate
        Candidates that only load, and only in the first rounds.
    processes : Processes
        Takes the samples.
    rounds : int or None
        Number of rounds; None for as many as there is time for.
    etl_alone_rounds : int
        Rounds in which loading alone is measured: the first ones.
    deadline : float
        Time of `time.monotonic`. No round begins that is expected to end later; samples are expected to take as long as
        the last time.
    hard_deadline : float
        The deadline while there are too few rounds for an interval.
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
        etl_alone_rounds: int,
        deadline: float,
        hard_deadline: float,
        seed: int,
        progress: Callable[[int], None],
    ) -> None:
        self._candidates = list(candidates)
        self._loading_only = [each for each in loading_only if each not in candidates]
        self._processes = processes
        self._wanted = rounds
        self._etl_alone_rounds = etl_alone_rounds
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
            on_failure=self._on_failure,
        )
        self.failed: dict[Candidate, str] = {}
        """Candidates that failed, with the reason."""
        self.stopped_early = False
        self.no_server = ""
        """Reason why the server of a round could not be started, which ended the rounds; otherwise empty."""

    @property
    def done(self) -> int:
        """Number of completed rounds."""
        return self._rounds.finished

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

        An interruption, or a server that cannot be started, ends the rounds early. Before the first complete round it
        is raised instead.
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
        """Start a new server: samples from one server share its memory layout, so they are a single repetition."""
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
            return self._processes.measure(candidate, with_etl_alone=number < self._etl_alone_rounds)
        finally:
            self._seconds[candidate] = time.monotonic() - started
            self._progress(self.done)

    @property
    def _reference(self) -> Candidate:
        return next(each for each in self._candidates if each in self._rounds.variants)

    def _on_failure(self, candidate: Candidate, error: MeasurementError) -> None:
        self.failed[candidate] = f"{error.reason}, in round {self.done + 1}"
        # The time of one that failed is not taken from the others.
        lost = self._seconds[candidate]
        self._deadline, self._hard_deadline = self._deadline + lost, self._hard_deadline + lost
        if not any(each in self._rounds.variants for each in self._candidates):
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
    """Return the width of each interval of the wall time ratio: its upper end divided by its lower end.

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
