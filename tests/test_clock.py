"""The clock against an oracle: delays that are known must come out as the figures that they make."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from delays import Delay, SlowSource

import etl
from benchmarks.clock import EpochTimes, run_epoch, touch

BATCHES = 10
# What the loop, two thread switches a batch and a late wake-up may add, with room for a machine that is busy.
SLACK_SECONDS = 0.015 * BATCHES


def run(loading: Delay, computing: Delay, prefetch_size: int) -> EpochTimes:
    plain = etl.RawIterator(SlowSource(loading, BATCHES), etl.Pipeline([]), batch_size=1)
    with etl.AsyncIterator(plain, prefetch_size=prefetch_size, threads=1) as iterator:
        return run_epoch(iterator, computing)


@pytest.mark.parametrize(("load_seconds", "compute_seconds"), [(0.03, 0.06), (0.06, 0.03)])
def test_plain_comes_out_as_loading_plus_compute(load_seconds: float, compute_seconds: float) -> None:
    loading, computing = Delay(load_seconds), Delay(compute_seconds)
    times = run(loading, computing, prefetch_size=0)
    assert times.wall == pytest.approx(sum(loading.taken) + sum(computing.taken), abs=SLACK_SECONDS)
    assert times.stall == pytest.approx(sum(loading.taken), abs=SLACK_SECONDS)
    assert times.compute == pytest.approx(sum(computing.taken), abs=SLACK_SECONDS)


def test_async_bound_by_compute_comes_out_as_compute_plus_the_first_batch() -> None:
    loading, computing = Delay(0.03), Delay(0.06)
    times = run(loading, computing, prefetch_size=2)
    assert times.wall == pytest.approx(loading.taken[0] + sum(computing.taken), abs=SLACK_SECONDS)
    assert times.stall == pytest.approx(loading.taken[0], abs=SLACK_SECONDS)


def test_async_bound_by_loading_comes_out_as_loading_plus_the_last_step() -> None:
    loading, computing = Delay(0.06), Delay(0.03)
    times = run(loading, computing, prefetch_size=2)
    assert times.wall == pytest.approx(sum(loading.taken) + computing.taken[-1], abs=SLACK_SECONDS)
    assert times.stall == pytest.approx(times.wall - sum(computing.taken), abs=SLACK_SECONDS)


def test_the_parts_add_up_to_the_wall_time_and_everything_is_counted() -> None:
    times = run(Delay(0.01), Delay(0.01), prefetch_size=2)
    assert times.stall + times.compute <= times.wall
    assert times.wall - times.stall - times.compute < SLACK_SECONDS
    assert (times.batches, times.samples) == (BATCHES, BATCHES)


def test_without_compute_all_of_the_wall_time_is_loading() -> None:
    loading = Delay(0.01)
    times = run_epoch(etl.RawIterator(SlowSource(loading, BATCHES), etl.Pipeline([]), batch_size=1), None)
    assert times.compute == 0
    assert times.wall == pytest.approx(sum(loading.taken), abs=SLACK_SECONDS)


def test_a_batch_that_is_only_mapped_is_read_inside_the_time_of_loading(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.ones((64, 4096), np.uint8))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    resident: list[int] = []

    def batches() -> Iterator[etl.Batch]:
        resident.append(resident_nbytes("features.npy"))
        yield etl.Batch(mapped, None)

    run_epoch(batches(), lambda _: resident.append(resident_nbytes("features.npy")))
    before, in_compute = resident
    assert before < mapped.nbytes <= in_compute


def test_touching_reads_arrays_of_every_layout() -> None:
    features = np.ones((3, 5000), np.uint8)
    # One of each of four pages, and the last byte.
    assert touch(etl.Batch(features, None)) == touch(etl.Batch(np.asfortranarray(features), None)) == 5


@pytest.mark.parametrize("start", [0, 1, 100, mmap.PAGESIZE - 1])
@pytest.mark.parametrize("nbytes", [1, 200, mmap.PAGESIZE, mmap.PAGESIZE + 1, 3 * mmap.PAGESIZE - 7])
def test_touching_reads_each_page_that_an_array_reaches_into_wherever_it_begins(start: int, nbytes: int) -> None:
    memory = np.frombuffer(mmap.mmap(-1, 5 * mmap.PAGESIZE), np.uint8)
    array = memory[start : start + nbytes]
    pages = memory.reshape(5, mmap.PAGESIZE)
    for page in range((start + nbytes - 1) // mmap.PAGESIZE + 1):
        pages[:] = 0
        pages[page] = 1
        assert touch(etl.Batch(array, None)) > 0, f"page {page} was not read"


def resident_nbytes(name: str) -> int:
    """How much of the mapped file this process has touched, from /proc/self/smaps."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.endswith(name):
            inside = True
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{name} is not mapped")
