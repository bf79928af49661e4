"""Shuffled rounds: each measures every variant once, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from .processes import MeasurementError

Variant = TypeVar("Variant", bound=Hashable)
Sample = TypeVar("Sample")


class Rounds(Generic[Variant, Sample]):
    """The samples of variants that are measured round by round. A variant that fails is left out of further rounds.

    Parameters
    ----------
    variants : iterable of hashable
        The variants to measure.
    take : callable
        Called with a variant and the number of the round; returns the sample. Raises `MeasurementError` if the variant
        cannot be measured.
    seed : int
        Decides the order in each round.
    taken : mapping or None
        Samples of an interrupted run, by variant and round.
    begin : callable or None
        Called with the number of a round in which there is something to measure; returns a context manager around it.
    progress : callable or None
        Called with a variant and the number of the round before each sample.
    on_failure : callable or None
        Called with a variant and the error that it failed with.

    Attributes
    ----------
    samples : dict
        Samples by variant and round.
    failed : dict
        Why each variant that was left out had failed, by variant. Its samples are kept.
    finished : int
        Complete rounds.
    """

    def __init__(
        self,
        variants: Iterable[Variant],
        take: Callable[[Variant, int], Sample],
        *,
        seed: int = 0,
        taken: Mapping[Variant, Mapping[int, Sample]] | None = None,
        begin: Callable[[int], AbstractContextManager[object]] | None = None,
        progress: Callable[[Variant, int], None] | None = None,
        on_failure: Callable[[Variant, MeasurementError], None] | None = None,
    ) -> None:
        self._take = take
        self._seed = seed
        self._begin = begin or _begin_nothing
        self._progress = progress or _show_nothing
        self._on_failure = on_failure or _show_nothing
        self.samples: dict[Variant, dict[int, Sample]] = {each: dict((taken or {}).get(each, {})) for each in variants}
        self.failed: dict[Variant, str] = {}
        self.finished = 0

    @property
    def variants(self) -> list[Variant]:
        """The variants that have not failed, in the given order."""
        return [each for each in self.samples if each not in self.failed]

    def run(self, rounds: int) -> None:
        """Measure until `rounds` rounds are finished."""
        while self.finished < rounds:
            self.take_round()

    def take_round(self, variants: Iterable[Variant] | None = None) -> None:
        """Measure each of `variants`, by default all, that has no sample of this round yet.

        After an interruption the round is unfinished, and another call continues it.
        """
        number = self.finished
        chosen = self.variants if variants is None else variants
        order = [each for each in chosen if each not in self.failed and number not in self.samples[each]]
        random.Random(f"{self._seed} {number}").shuffle(order)
        with self._begin(number) if order else contextlib.nullcontext():
            for variant in order:
                self._progress(variant, number)
                try:
                    self.samples[variant][number] = self._take(variant, number)
                except MeasurementError as error:
                    self.failed[variant] = str(error)
                    self._on_failure(variant, error)
        self.finished += 1

    def drop_unfinished(self) -> None:
        """Remove the samples of a round that was interrupted."""
        for samples in self.samples.values():
            samples.pop(self.finished, None)


def _begin_nothing(number: int) -> AbstractContextManager[object]:  # noqa: ARG001
    return contextlib.nullcontext()


def _show_nothing(variant: object, detail: object) -> None:
    pass
