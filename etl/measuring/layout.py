"""Memory layout randomization: where a process's objects and buffers lie is drawn anew.

That decides about several percent of its speed, for as long as it lives, and a change of the code can change it without
changing what is done (Mytkowicz et al. 2009, doi:10.1145/1508244.1508275): servers of the same commit were seen to
differ by up to 12% in decoding, and all that were forked from them. Drawn anew it becomes noise, which more repetitions
average out; the same for both sides, it would hide in a constant.
"""

from __future__ import annotations

import random

import numpy as np

# Blocks of the heap below which everything else comes to lie: fewer and smaller than these.
MAX_BLOCKS = 4000
MAX_BLOCK_NBYTES = 4096
# Arrays that are held during a turn: between what is used in one turn and in the next lie other distances.
GAPS = 5
MAX_GAP_NBYTES = 200_000
# Pillow keeps the memory of its images, and all threads have one heap. Otherwise the gaps are without effect: the same
# free block, as large as the image, is found again in all turns of a process, which is faster or slower than others.
ENVIRONMENT = {"PILLOW_BLOCKS_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}

_random = random.SystemRandom()


def draw_blocks() -> list[bytearray]:
    """Return blocks to be held from before packages are imported."""
    return [bytearray(_random.randrange(1, MAX_BLOCK_NBYTES)) for _ in range(_random.randrange(MAX_BLOCKS))]


def draw_gaps() -> list[np.ndarray]:
    """Return arrays to be held during a turn."""
    return [np.empty(_random.randrange(1, MAX_GAP_NBYTES), np.uint8) for _ in range(GAPS)]
