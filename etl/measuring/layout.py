"""Memory layout randomization: the addresses of a process's objects and buffers are drawn at random.

The layout decides several percent of the speed of a process, for its whole life. A change of the code can change the
layout without changing the work (Mytkowicz et al. 2009, doi:10.1145/1508244.1508275): servers of the same commit, and
all processes forked from them, differed by up to 12% in decoding. A random layout is noise, which more repetitions
average out; a fixed layout would be a constant error.
"""

from __future__ import annotations

import importlib
import random
import string
from collections.abc import Iterable

import numpy as np

# Upper bounds for the number and size of the random blocks that are allocated before everything else on the heap.
MAX_BLOCKS = 4000
MAX_BLOCK_NBYTES = 4096
# Arrays held during a turn, so that the distances between buffers differ from turn to turn.
GAPS = 5
MAX_GAP_NBYTES = 200_000
# Pillow keeps the memory of its images, and all threads share one heap. Otherwise the gaps have no effect: every turn
# of a process gets the same free block of an image's size, and some blocks are faster than others.
ENVIRONMENT = {"PILLOW_BLOCKS_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}
# Environment variables are stored above the stack of a process, so their size moves the stack.
PADDING_VARIABLE = "FAIR_ETL_PADDING"
MAX_PADDING = 4000

_random = random.SystemRandom()


def draw_hash_seed() -> int:
    """Return a random PYTHONHASHSEED for a new server."""
    return _random.randrange(2**32)


def draw_environment() -> dict[str, str]:
    """Return an environment variable of random length for a new server."""
    length = _random.randrange(MAX_PADDING + 1)
    return {PADDING_VARIABLE: "".join(_random.choices(string.ascii_letters, k=length))}


def import_in_drawn_order(modules: Iterable[str]) -> None:
    """Import `modules` in random order, which changes the addresses of what they share."""
    names = list(modules)
    _random.shuffle(names)
    for name in names:
        importlib.import_module(name)


def draw_blocks() -> list[bytearray]:
    """Return random blocks, to be held from before packages are imported."""
    return [bytearray(_random.randrange(1, MAX_BLOCK_NBYTES)) for _ in range(_random.randrange(MAX_BLOCKS))]


def draw_gaps() -> list[np.ndarray]:
    """Return arrays of random size, to be held during a turn."""
    return [np.empty(_random.randrange(1, MAX_GAP_NBYTES), np.uint8) for _ in range(GAPS)]
