"""Shuffled rounds: in each every variant is measured once, so that whatever the machine does meets all of them."""

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
    """Measures variants round by round. A variant that cannot be measured is left out from then on.

    Parameters
    ----------
    variants : iterable of hashable
        What is measured.
    take : callable
        Is called with a variant and the number of the round, and returns the sample. It raises `MeasurementError` if
        the variant cannot be measured.
    seed : int
        Of the order in each round.
    taken : mapping or None
        Samples by variant and round that exist already, of an interrupted run.
    begin : callable or None
        Is called with the number of a round that has something to measure, and returns a context manager around it.
    progress : callable or None
        Is called with a variant and the number of the round before each sample.
    on_failure : callable or None
        Is called with a variant and the error that it failed with.

    Attributes
    ----------
    samples : dict
        Samples by variant and round.
    failed : dict
        The reason, by variant that was left out. Its samples are kept.
    finished : int
        Rounds that were measured to their end.
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
        self._begin = begin or _nothing_to_begin
        self._progress = progress or _nothing_to_show
        self._on_failure = on_failure or _nothing_to_show
        self.samples: dict[Variant, dict[int, Sample]] = {each: dict((taken or {}).get(each, {})) for each in variants}
        self.failed: dict[Variant, str] = {}
        self.finished = 0

    @property
    def variants(self) -> list[Variant]:
        """Those that are still measured, in the order that was given."""
        return [each for each in self.samples if each not in self.failed]

    def run(self, rounds: int) -> None:
        """Measure until there were `rounds`."""
        while self.finished < rounds:
            self.take_round()

    def take_round(self, variants: Iterable[Variant] | None = None) -> None:
        """Measure each of `variants`, by default all, that has no sample of this round yet.

        If it is interrupted, the round is not finished, and calling it again goes on with it.
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


def _nothing_to_begin(number: int) -> AbstractContextManager[object]:  # noqa: ARG001 - there is nothing
    return contextlib.nullcontext()


def _nothing_to_show(variant: object, told: object) -> None:
    pass
