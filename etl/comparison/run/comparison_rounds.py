"""The rounds of a comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from etl.comparison.request.answers import AuditedSample, LoadingSample
from etl.comparison.request.candidates import Candidate
from etl.comparison.run.measuring_processes import InputError, MeasuringProcesses
from etl.measuring.noise import NoiseGate
from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds, SamplePlace
from etl.measuring.sample import Recipe
from etl.measuring.statistics import MIN_ROUNDS

Samples = Mapping[Candidate, Mapping[int, AuditedSample]]


class _NoServerError(MeasurementError):
    """The server of a round could not be started."""


class ComparisonRounds:
    """The rounds of a comparison, each with its own server.

    Samples that were disturbed are taken again, see `NoiseGate`.

    A candidate that fails is left out of all later rounds, and its samples are dropped. If it was the reference, the
    next one is. If all fail, `run` raises the last `MeasurementError`.

    Parameters
    ----------
    seed : int or None
        Seed for the order within each round; drawn by default.
    name : callable
        Returns the name of a candidate in the report.
    progress : callable
        Called with the number of completed rounds after each sample.
    """

    def __init__(
        self,
        recipes: Mapping[Candidate, Recipe],
        loading_only: Sequence[Candidate],
        processes: MeasuringProcesses,
        *,
        etl_alone_rounds: int,
        seed: int | None,
        name: Callable[[Candidate], str],
        progress: Callable[[int], None],
    ) -> None:
        self._recipes = recipes
        self._loading_only = [each for each in loading_only if each not in recipes]
        self._processes = processes
        self._etl_alone_rounds = etl_alone_rounds
        self._name = name
        self._progress = progress
        self._rounds: Rounds[Candidate, AuditedSample | LoadingSample] = Rounds(
            [*recipes, *self._loading_only],
            self._take,
            seed=seed,
            begin=self._begin,
            on_failure=self._on_failure,
        )
        self.failed: dict[Candidate, str] = {}
        """Candidates that failed, with the reason."""
        self.lost = 0.0
        """Seconds of samples that failed."""
        self.gate = NoiseGate()
        self._wanted = MIN_ROUNDS
        self.stopped_early = False
        self.end_reason = ""
        """Error that ended the rounds early; empty if none did."""

    @property
    def done(self) -> int:
        """Number of completed rounds."""
        return self._rounds.finished

    @property
    def seed(self) -> int:
        """Seed of the order within each round."""
        return self._rounds.seed

    @property
    def places(self) -> Mapping[Candidate, Mapping[int, SamplePlace]]:
        """Places of the samples, by candidate and round."""
        return self._rounds.places

    @property
    def samples(self) -> Samples:
        """Samples by candidate and round."""
        return {
            each: {number: one for number, one in self._rounds.samples[each].items() if isinstance(one, AuditedSample)}
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

    def run(self, choose: Callable[[float], int]) -> None:
        """Take the rounds.

        An interruption, an error in the input, or a server that cannot be started, ends them early. Before the first
        complete round it is raised instead. `choose` is called with the seconds of a round without loading alone and
        what has failed, and returns how many rounds there are to be.
        """
        try:
            started = time.monotonic()
            self._take_round()
            self._wanted = choose(time.monotonic() - started - self._etl_alone_seconds() - self.lost)
            while self.done < self._wanted:
                self._take_round()
        except (KeyboardInterrupt, _NoServerError, InputError) as error:
            if not self.done:
                raise
            self.stopped_early = True
            self.end_reason = str(error)
            self._rounds.drop_unfinished()

    def _etl_alone_seconds(self) -> float:
        alone = [one.etl_alone for each in self._rounds.variants for one in self._rounds.samples[each].values()]
        return sum(each.total for each in alone if each is not None)

    def _take_round(self) -> None:
        loading_only = self._loading_only if self.done < self._etl_alone_rounds else []
        self._rounds.take_round([*self._recipes, *loading_only])

    @contextmanager
    def _begin(self, number: int) -> Iterator[None]:  # noqa: ARG002 - all rounds begin alike
        """Take a new server: samples from one server share its memory layout, so they are a single repetition."""
        try:
            self._processes.renew()
        except MeasurementError as error:
            raise _NoServerError(str(error), error.text) from error
        yield

    def _take(self, candidate: Candidate, number: int) -> AuditedSample | LoadingSample:
        started = time.monotonic()
        try:
            if candidate in self._loading_only:
                return self._processes.load(candidate)
            recipe = replace(self._recipes[candidate], etl_alone=number < self._etl_alone_rounds)
            return self.gate.take(
                f"{self._name(candidate)} in round {number + 1}",
                len(self._recipes) * max(self._wanted, number + 1),
                lambda: self._processes.measure(candidate, recipe),
            )
        except MeasurementError:
            self.lost += time.monotonic() - started
            raise
        finally:
            self._progress(self.done)

    def _on_failure(self, candidate: Candidate, error: MeasurementError) -> None:
        self.failed[candidate] = f"{error.reason}, in round {self.done + 1}"
        if not any(each in self._rounds.variants for each in self._recipes):
            raise error
