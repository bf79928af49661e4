"""The random numbers of a record, which do not depend on the thread, process or strategy that loads it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

# The highest word of the Philox counter, which keeps these streams apart from those that order the epoch.
STAGES = 1


@dataclass(frozen=True)
class RecordRng:
    """Seeds the random stages for one record.

    Parameters
    ----------
    seed : int
        The iterator's seed.
    epoch : int
        The epoch.
    record : int
        Index of the record in the source.
    """

    seed: int
    epoch: int
    record: int

    def generator(self, place: int) -> np.random.Generator:
        """Return a generator for the stage at index `place` of the whole pipeline, preceding stages included.

        It is Philox (Salmon et al. 2011, doi:10.1145/2063384.2063405), with seed and epoch as its key, and record and
        place in its counter. Streams have 2**64 numbers and do not overlap.
        """
        key = np.array([self.seed, self.epoch], dtype=np.uint64)
        counter = np.array([0, self.record, place, STAGES], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class LoaderRng(threading.local):
    """The random numbers of one record after another, those of `RecordRng`, with one generator for each thread.

    Making a generator takes ten times as long as resetting one. A generator is valid until its thread asks for another.
    `epoch` and `record` are to be set before the stages of a record run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = self.record = 0
        self._generator = RecordRng(seed, 0, 0).generator(0)

    def generator(self, place: int) -> np.random.Generator:
        """Return the generator for the stage at index `place` of the whole pipeline, preceding stages included."""
        self._generator.bit_generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": (0, self.record, place, STAGES), "key": (self.seed, self.epoch)},
            "buffer": (0, 0, 0, 0),
            "buffer_pos": 4,  # nothing is left in the buffer
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self._generator

    def __reduce__(self) -> tuple[Any, ...]:
        return LoaderRng, (self.seed,)
