"""What a process does that reads a store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import presave


def read_all(path: Path, seed: int, times: int) -> tuple[int, set[str]]:
    """How many records were read, one by one and gathered, in shuffled orders, and the digests of the whole."""
    digests, read = set(), 0
    with presave.open_store(path) as store:
        for turn in range(times):
            order = np.random.default_rng([seed, turn]).permutation(len(store))
            gathered = store.gather(order)["features"]
            for row, number in enumerate(order.tolist()):
                assert np.array_equal(store[number]["features"], gathered[row]), f"record {number} of {path}"
            digests.add(hashlib.sha256(gathered[np.argsort(order)].tobytes()).hexdigest())
            read += 2 * len(order)
    return read, digests
