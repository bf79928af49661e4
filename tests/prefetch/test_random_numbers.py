"""Random numbers that a user's source or stage draws from global generators, in worker processes."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from etl.sources import RecordError
from tests.programs import run_python
from tests.worker_processes import NOTHING

RECORDS = 48


class Drawing:
    """Records that are drawn from the global generators of Python and numpy."""

    def __init__(self, killed: int | None = None, once: Path | None = None) -> None:
        self.killed = killed
        self.once = once

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.killed and self.once is not None and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"features": np.array([random.random(), np.random.rand()]), "label": index}  # noqa: NPY002


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def make(source: Drawing | None = None, seed: int = 0, rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    iterator = etl.RawIterator(source or Drawing(), NOTHING, 8, seed=seed, dtype=None).shard(rank, ranks)
    return etl.AsyncIterator(iterator, 2, workers="process", processes=2, **options)


def drawn(batches: Any) -> np.ndarray:
    return np.concatenate([batch.features.copy() for batch in batches])


def different(*values: np.ndarray) -> int:
    return len(set(np.concatenate(values).ravel().tolist()))


def test_no_two_records_epochs_iterators_seeds_or_ranks_share_random_numbers() -> None:
    seed_all(0)
    values = []
    with make() as one, make() as other:
        values += [drawn(one), drawn(one), drawn(other)]
    for options in ({"seed": 1}, {"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2}):
        seed_all(0)  # as in the script of every rank
        with make(**options) as iterator:
            values.append(drawn(iterator))
    assert different(*values) == 2 * 5 * RECORDS


def test_equal_seeds_of_a_script_give_equal_random_numbers_also_after_a_resume() -> None:
    seed_all(3)
    with make() as iterator:
        first, second = drawn(iterator), drawn(iterator)
    seed_all(3)
    with make() as iterator:
        for _ in zip(range(3), iterator, strict=False):
            state = iterator.state_dict()
        iterator.load_state_dict(state)
        assert np.array_equal(drawn(iterator), first[24:])
        assert np.array_equal(drawn(iterator), second)
    np.random.seed(3)  # noqa: NPY002
    with make() as iterator:
        assert np.array_equal(drawn(iterator)[:, 1], first[:, 1])


def test_a_worker_that_replaces_a_killed_one_draws_other_numbers(tmp_path: Path) -> None:
    seed_all(0)
    source = Drawing(killed=24, once=tmp_path / "killed")
    with make(source) as iterator:
        before: list[np.ndarray] = []
        with pytest.raises(RecordError, match="killed by signal 9"):
            before.extend(batch.features.copy() for batch in iterator)
        iterator.set_epoch(1)
        after = drawn(iterator)
    assert before
    assert different(*before, after) == 2 * (8 * len(before) + RECORDS)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_stages_of_a_script_that_seeds_at_its_top_reach_the_workers_and_do_not_draw_alike(
    tmp_path: Path, start_method: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import dataclasses, os, random, numpy as np, etl\n"
        "random.seed(0); np.random.seed(0)\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Add:\n"
        "    amount: float\n"
        "    name = 'add'\n"
        "    def __call__(self, record):\n"
        "        return {**record, 'features': np.array([record['label'] + self.amount, *record['features']])}\n"
        "def draw(record):\n"
        "    return {**record, 'features': np.array([random.random(), np.random.rand(), os.getpid()])}\n"
        "if __name__ == '__main__':\n"
        f"    records = [{{'features': [0.0], 'label': n}} for n in range({RECORDS})]\n"
        "    raw = etl.RawIterator(records, etl.Pipeline([draw, Add(3.0)]), 8, dtype=None)\n"
        f"    options = dict(workers='process', processes=3, start_method={start_method!r})\n"
        "    with etl.AsyncIterator(raw, 2, **options) as batches:\n"
        "        found = np.concatenate([batch.features.copy() for batch in batches])\n"
        "    print(found[:, 0].tolist() == [n + 3.0 for n in range(len(found))], os.getpid() in found[:, 3])\n"
        "    print(*found[:, 1:3].ravel())\n"
    )
    done = run_python(script)
    assert done.stderr == ""
    arrived, drawn_numbers = done.stdout.splitlines()
    assert arrived == "True False"
    assert len(set(drawn_numbers.split())) == 2 * RECORDS
