"""Memory layout randomization: where a process's objects and buffers lie is drawn anew.

That decides about several percent of its speed, for as long as it lives, and a change of the code can change it without
changing what is done (Mytkowicz et al. 2009, doi:10.1145/1508244.1508275): servers of the same commit were seen to
differ by up to 12% in decoding, and all that were forked from them. Drawn anew it becomes noise, which more repetitions
average out; the same for both sides, it would hide in a constant.
"""

from __future__ import annotations

import importlib
import random
import string
from collections.abc import Iterable

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
# Environment variables lie above the stack of a process: their size moves all of it.
PADDING_VARIABLE = "FAIR_ETL_PADDING"
MAX_PADDING = 4000

_random = random.SystemRandom()


def draw_hash_seed() -> int:
    """Return a value of PYTHONHASHSEED, for a server that is to be started."""
    return _random.randrange(2**32)


def draw_environment() -> dict[str, str]:
    """Return an environment variable of a length that is drawn anew, for a server that is to be started."""
    length = _random.randrange(MAX_PADDING + 1)
    return {PADDING_VARIABLE: "".join(_random.choices(string.ascii_letters, k=length))}


def import_in_drawn_order(modules: Iterable[str]) -> None:
    """Import `modules` in an order that is drawn anew.

    What they have in common lies where the first of them needed it.
    """
    names = list(modules)
    _random.shuffle(names)
    for name in names:
        importlib.import_module(name)


def draw_blocks() -> list[bytearray]:
    """Return blocks to be held from before packages are imported."""
    return [bytearray(_random.randrange(1, MAX_BLOCK_NBYTES)) for _ in range(_random.randrange(MAX_BLOCKS))]


def draw_gaps() -> list[np.ndarray]:
    """Return arrays to be held during a turn."""
    return [np.empty(_random.randrange(1, MAX_GAP_NBYTES), np.uint8) for _ in range(GAPS)]
