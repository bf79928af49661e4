"""Where a process's objects and buffers lie in memory, drawn anew for every process and every turn.

That decides about several percent of its speed, for as long as it lives, and a commit can change it without changing
what is done: servers of the same commit were seen to differ by up to 12% in decoding, and all that were forked from
them. Drawn anew it becomes noise, which more pairs average out; the same for both, it would hide in a constant.
"""

from __future__ import annotations

import random

import numpy as np

# Blocks of the heap below which everything else comes to lie: fewer and smaller than these.
MOST_BLOCKS = 4000
MOST_BLOCK_NBYTES = 4096
# Arrays that are held during a turn: between what is used in one turn and in the next lie other distances.
GAPS = 5
MOST_GAP_NBYTES = 200_000
# Pillow keeps the memory of its images, and all threads have one heap. Otherwise the gaps are without effect: the same
# free block, as large as the image, is found again in all turns of a process, which is faster or slower than others.
ENVIRONMENT = {"PILLOW_BLOCKS_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}

_draw = random.SystemRandom()


def draw_blocks() -> list[bytearray]:
    """To be held from before the packages are imported."""
    return [bytearray(_draw.randrange(1, MOST_BLOCK_NBYTES)) for _ in range(_draw.randrange(MOST_BLOCKS))]


def draw_gaps() -> list[np.ndarray]:
    """To be held during a turn."""
    return [np.empty(_draw.randrange(1, MOST_GAP_NBYTES), np.uint8) for _ in range(GAPS)]
