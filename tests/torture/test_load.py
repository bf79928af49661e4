"""Many epochs, many iterators, many processes: memory, descriptors and threads stay as they are."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import etl
import presave
from tests.leftovers import Leftovers
from tests.programs import run_python
from tests.torture.conftest import HowMany, Tally
from tests.worker_processes import Made

MAX_SLOPE = 0.001
# Of a few epochs, in which a single page more is as much as that an epoch.
MAX_SLOPE_OF_FEW_EPOCHS = 0.005
FEW_STRATEGIES = ("raw", "async presaved npy")
ITERATORS = 64


def go_through_epochs(folder: Path, epochs: int, leaking: str, *strategies: str) -> list[dict[str, int]]:
    script = Path(__file__).with_name("epochs.py")
    done = run_python(script, str(epochs), folder, leaking, *strategies, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def slope(values: list[int]) -> float:
    """Growth an epoch, as a share: the median over all pairs (Theil and Sen), which one odd epoch does not move."""
    pairs = combinations(enumerate(values), 2)
    return median((later - sooner) / (there - here) for (here, sooner), (there, later) in pairs) / median(values)


def test_memory_descriptors_and_threads_stay_flat_over_epochs(tmp_path: Path, how_many: HowMany, tally: Tally) -> None:
    epochs = how_many(8, 24)
    held = go_through_epochs(tmp_path, epochs, "none", *FEW_STRATEGIES[: how_many(2, 0)])
    nbytes = [each["nbytes"] for each in held]
    grown = slope(nbytes)
    assert grown < how_many(MAX_SLOPE_OF_FEW_EPOCHS, MAX_SLOPE), f"{grown:.4%} an epoch: {nbytes}"
    for what in ("descriptors", "threads", "processes"):
        assert len({each[what] for each in held}) == 1, f"{what}: {[each[what] for each in held]}"
    strategies = how_many(2, 14)
    tally(
        f"{epochs} epochs with {strategies} strategies in one process", f"{grown:.3%} of memory an epoch, all else flat"
    )


def test_a_leak_of_one_batch_an_epoch_would_be_seen(tmp_path: Path, how_many: HowMany, tally: Tally) -> None:
    epochs = how_many(8, 24)
    held = go_through_epochs(tmp_path, epochs, "raw", *FEW_STRATEGIES[: how_many(2, 0)])
    grown = slope([each["nbytes"] for each in held])
    assert grown > how_many(MAX_SLOPE_OF_FEW_EPOCHS, MAX_SLOPE)
    tally(f"{epochs} epochs with a leak of a batch in each, on purpose", f"seen: {grown:.3%} of memory an epoch")


def bytes_of(batch: etl.Batch) -> tuple[bytes, bytes]:
    return batch.features.tobytes(), batch.labels.tobytes()


def go_through_at_once(every_so_many_with_processes: int) -> None:
    """Iterators in turns, a batch of each and then the next of each, beside the plain ones."""
    plain = [etl.RawIterator(Made(), etl.Pipeline([]), 4, shuffle=True, seed=seed) for seed in range(ITERATORS)]
    iterators = []
    for seed, each in enumerate(plain):
        options: dict[str, Any] = {"threads": 1 + seed % 3}
        if seed % every_so_many_with_processes == 0:
            options = {"workers": "process", "processes": 1}
        iterators.append(etl.AsyncIterator(each.shard(0, 1), **options))
    for batches in zip(*iterators, *plain, strict=True):
        for mine, theirs in zip(batches[:ITERATORS], batches[ITERATORS:], strict=True):
            assert bytes_of(mine) == bytes_of(theirs)
    for iterator in iterators:
        iterator.close()


def test_many_iterators_at_once(how_many: HowMany, tally: Tally) -> None:
    before = Leftovers.now()
    for _ in range(how_many(1, 5)):
        go_through_at_once(how_many(32, 4))
        before.assert_the_same()
        tally(f"{ITERATORS} iterators at once", "the bytes of the plain ones, nothing left")


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


def test_a_store_is_read_by_many_processes_while_another_is_written_beside_it(
    tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    records = [
        {"features": np.random.default_rng(number).standard_normal((4, 50)), "label": number} for number in range(300)
    ]
    presave.write(tmp_path / "read", records, shard_nbytes=1600 * 40).close()
    _, expected = read_all(tmp_path / "read", 0, 1)
    readers = how_many(2, 8)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(readers, mp_context=context) as pool:
        reading = [pool.submit(read_all, tmp_path / "read", seed, how_many(2, 100)) for seed in range(readers)]
        written = 0
        while written == 0 or not all(each.done() for each in reading):
            presave.write(tmp_path / f"written{written}", records, shard_nbytes=1600 * 40).close()
            presave.verify(tmp_path / f"written{written}")
            written += 1
        for each in reading:
            read, digests = each.result()
            assert digests == expected
            tally(f"records read by {readers} processes while stores are written beside", "right", read)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        ["read", *(f"written{number}" for number in range(written))]
    )
    tally("stores written beside one that is read", "whole", written)
