"""Seeds of the global random generators in processes that run a user's code."""

from __future__ import annotations

import random
import sys
from typing import Any, NamedTuple

import numpy as np
import xxhash


class BaseSeeds(NamedTuple):
    """Numbers that the generators of a process have drawn: the seeds of other processes begin with them.

    Each library's seeds follow from its own generator, so that a script that seeds only that one gets its numbers
    again; those of torch from Python's unless torch is loaded.
    """

    python: int
    numpy: int
    torch: int


def draw_base_seeds() -> BaseSeeds:
    """Draw a number from the global generators of Python, numpy and, if it is loaded, torch.

    That advances them, as a torch DataLoader advances torch's, so that no two calls return the same numbers.
    """
    torch: Any = sys.modules.get("torch")
    python = random.getrandbits(63)
    numpy = int(np.random.randint(2**63 - 1, dtype=np.int64))  # noqa: NPY002 - the generator that a script seeds
    drawn = python if torch is None else int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    return BaseSeeds(python, numpy, drawn)


def seed_process(base: BaseSeeds, *key: object) -> None:
    """Seed the global generators of Python, numpy and, if it is loaded, torch's CPU in this process.

    Equal arguments give equal random numbers, and different ones different numbers. `key` is any values whose `repr`
    identifies them.
    """
    python, numpy, torch = (xxhash.xxh3_128_digest(repr((number, *key)).encode()) for number in base)
    random.seed(python)
    np.random.seed(np.frombuffer(numpy, np.uint32))  # noqa: NPY002 - the generator that a user's code may use
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:  # torch.manual_seed would seed devices, too
        generator.manual_seed(int.from_bytes(torch[:8], "little"))
