"""Seeds of processes that run a user's code."""

from __future__ import annotations

import itertools
import random
from operator import ne
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

import presave
from etl.sources.randomness import random_states_kept
from presave.random_seeds import BaseSeeds, draw_base_seeds, seed_process


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), float(torch.rand((), dtype=torch.float64))  # noqa: NPY002


def test_a_process_draws_the_numbers_of_its_key_and_no_others() -> None:
    keys = [(0,), (1,), (0, 0), (0, 1), (None, 0), ("0", 0)]
    bases = [BaseSeeds(0, 0, 0), BaseSeeds(1, 1, 1), BaseSeeds(2**63 - 1, 2**63 - 1, 2**63 - 1)]
    with random_states_kept():
        drawn: list[float] = []
        for base, key in itertools.product(bases, keys):
            seed_process(base, *key)
            first = draw()
            seed_process(base, *key)
            assert draw() == first
            drawn += first
    assert len(set(drawn)) == 3 * len(bases) * len(keys)


def test_base_seeds_repeat_for_a_library_that_is_seeded_again_and_otherwise_differ() -> None:
    with random_states_kept():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        first, second = draw_base_seeds(), draw_base_seeds()
        assert all(map(ne, first, second))
        np.random.seed(0)  # noqa: NPY002
        third = draw_base_seeds()
        assert third.numpy == first.numpy
        assert third.python not in {first.python, second.python}
        assert third.torch not in {first.torch, second.torch}


class Drawing:
    """Records that are drawn from the global generators of Python and numpy."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.array([random.random(), np.random.rand()]), "label": index}  # noqa: NPY002


def test_processes_that_write_a_store_draw_different_numbers_and_the_same_when_seeded_again(tmp_path: Path) -> None:
    drawn = []
    with random_states_kept(), joblib.parallel_config("loky"):
        for seed, name in enumerate(("one", "other", "again")):
            random.seed(seed % 2)
            np.random.seed(seed % 2)  # noqa: NPY002
            with presave.write(tmp_path / name, Drawing(), jobs=2, shard_nbytes=96) as store:
                drawn.append([tuple(store[index]["features"].tolist()) for index in range(24)])
    assert drawn[2] == drawn[0]
    assert len(set(itertools.chain(*drawn[0], *drawn[1]))) == 2 * 2 * 24
