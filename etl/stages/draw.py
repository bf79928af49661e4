"""What random stages draw: the same for a record in an epoch, whatever loads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The highest word of the Philox counter, so that no stage meets the numbers that order the epoch.
STAGES = 1


@dataclass(frozen=True)
class Draw:
    """Seeds the random stages for one record: by the iterator's seed, the epoch, and the record's number."""

    seed: int
    epoch: int
    record: int

    def generator(self, place: int) -> np.random.Generator:
        """A generator for the stage with `place` stages before it in the whole pipeline.

        Philox (Salmon et al. 2011, doi:10.1145/2063384.2063405) with the seed and epoch as its key, record and place in
        its counter: streams of 2**64 numbers that do not meet.
        """
        key = np.array([self.seed, self.epoch], dtype=np.uint64)
        counter = np.array([0, self.record, place, STAGES], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))
