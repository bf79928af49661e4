"""Balanced rounds: each measures every variant once, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from .processes import MeasurementError
from .values import JsonValues

Variant = TypeVar("Variant", bound=Hashable)
Sample = TypeVar("Sample")


def balanced_order(count: int, number: int, seed: int) -> list[int]:
    """Return the order in which `count` arms are measured in a round, as their indices.

    Rounds come in pairs, of which one has the reverse order of the other. So after any even number of rounds, each arm
    has come before each other one in half of them, and all arms have the same mean position: a steady drift of the
    machine cancels. This remains true of those that are left if some are left out.

    The pairs are rows of a Williams design. In a whole cycle of it (`count` rounds, or twice as many if `count` is
    odd), each arm is equally often in each position, and equally often right after each other arm: neither the place in
    a round nor what the arm before leaves behind favours any. Each cycle draws anew which arm has which role, the order
    of its pairs, and which round of a pair comes first.

    Parameters
    ----------
    number : int
        Number of the round, from 0.
    """
    pair, second = divmod(number, 2)
    pairs = max(1, count if count % 2 else count // 2)
    cycle, turn = divmod(pair, pairs)
    drawn = random.Random(f"{seed} {cycle}")
    arms = drawn.sample(range(count), count)
    row = drawn.sample(range(pairs), pairs)[turn]
    first = drawn.choices((0, 1), k=pairs)[turn]
    # From a row's own place one step back, then two forward, three back, and so on: no step comes twice.
    order = [arms[(row + (step + 1) // 2 * (-1) ** step) % count] for step in range(count)]
    return order if second == first else order[::-1]


@dataclass(frozen=True)
class SamplePlace(JsonValues):
    """The place of a sample in its round.

    Attributes
    ----------
    position : int
        Samples of the round that were taken before it.
    started_at : float
        Time of `time.time` at which taking it began.
    """

    position: int
    started_at: float


class Rounds(Generic[Variant, Sample]):
    """The samples of variants that are measured round by round. A variant that fails is left out of further rounds.

    Parameters
    ----------
    take : callable
        Called with a variant and the number of the round; returns the sample. Raises `MeasurementError` if the variant
        cannot be measured.
    seed : int or None
        Decides the order in each round (`balanced_order`); None draws one.
    begin : callable or None
        Called with the number of a round in which there is something to measure; returns a context manager around it.
    on_failure : callable or None
        Called with a variant and the error that it failed with.
    note : callable or None
        Called with a variant and the number of the round, as a tuple, and the sample that was taken.

    Attributes
    ----------
    samples : dict
        Samples by variant and round.
    places : dict
        The `SamplePlace` of each sample that was taken here, by variant and round; `take` finds that of its sample.
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
        seed: int | None = None,
        taken: Mapping[Variant, Mapping[int, Sample]] | None = None,
        begin: Callable[[int], AbstractContextManager[object]] | None = None,
        on_failure: Callable[[Variant, MeasurementError], None] | None = None,
        note: Callable[[tuple[Variant, int], Sample], None] | None = None,
    ) -> None:
        self._take = take
        self._begin = begin or contextlib.nullcontext
        self._on_failure = on_failure or _do_nothing
        self._note = note or _do_nothing
        self.seed = secrets.randbits(32) if seed is None else seed
        self.samples: dict[Variant, dict[int, Sample]] = {each: dict((taken or {}).get(each, {})) for each in variants}
        self.places: dict[Variant, dict[int, SamplePlace]] = {each: {} for each in self.samples}
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
        chosen = set(self.variants if variants is None else variants)
        every = list(self.samples)
        # Those that are not measured are left out of the order of all: so the others keep their balance.
        order = [every[place] for place in balanced_order(len(every), number, self.seed)]
        missing = [each for each in order if each in chosen - self.failed.keys() and number not in self.samples[each]]
        with self._begin(number) if missing else contextlib.nullcontext():
            for variant in missing:
                position = sum(number in samples for samples in self.samples.values())
                self.places[variant][number] = SamplePlace(position, time.time())
                try:
                    sample = self.samples[variant][number] = self._take(variant, number)
                except MeasurementError as error:
                    del self.places[variant][number]
                    self.failed[variant] = str(error)
                    self._on_failure(variant, error)
                    continue
                self._note((variant, number), sample)
        self.finished += 1

    def drop_unfinished(self) -> None:
        """Remove the samples of a round that was interrupted."""
        for variant, samples in self.samples.items():
            samples.pop(self.finished, None)
            self.places[variant].pop(self.finished, None)


def _do_nothing(variant: object, detail: object) -> None:
    pass
