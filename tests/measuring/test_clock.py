"""The clock against an oracle: known delays are found in the parts of an epoch that contain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import etl
from etl.measuring.arrays import touch
from etl.measuring.clock import EpochMetrics, EpochTimes, Split, run_epoch
from etl.measuring.epochs import Epochs, MeasuredLoader
from tests.delays import Delay, SlowSource

BATCHES = 8


def run(loading: Delay, compute: Delay | None, prefetch_size: int) -> EpochTimes:
    plain = etl.RawIterator(SlowSource(loading, BATCHES), etl.Pipeline([]), batch_size=1)
    with etl.AsyncIterator(plain, prefetch_size, threads=1) as iterator:
        return run_epoch(iterator, compute)


def test_without_prefetching_all_loading_is_stall_and_all_steps_are_compute() -> None:
    loading, steps = Delay(0.03), Delay(0.03)
    times = run(loading, steps, prefetch_size=0)
    assert times.stall.total >= sum(loading.taken)
    assert times.stall.first >= loading.taken[0]
    assert times.stall.rest >= sum(loading.taken[1:])
    assert times.compute.total >= sum(steps.taken)
    assert times.compute.first >= steps.taken[0]
    # Each delay counts in one of the two only.
    assert times.stall.total - sum(loading.taken) < sum(steps.taken)
    assert times.compute.total - sum(steps.taken) < sum(loading.taken)
    assert times.wall.total >= sum(loading.taken) + sum(steps.taken)


def test_with_prefetching_the_stall_is_the_first_batch_and_loading_that_compute_did_not_hide() -> None:
    loading, steps = Delay(0.02), Delay(0.06)
    times = run(loading, steps, prefetch_size=2)
    assert times.stall.first >= loading.taken[0]
    assert times.compute.total >= sum(steps.taken)
    # Seven loads that each take a third of a step cause hardly any wait.
    assert times.stall.rest < sum(loading.taken[1:])


def test_with_prefetching_the_wall_is_no_shorter_than_loading() -> None:
    loading, steps = Delay(0.03), Delay(0.01)
    times = run(loading, steps, prefetch_size=2)
    assert times.wall.total >= sum(loading.taken) + steps.taken[-1]
    # Loading is behind from the first batch to the last: what is not stall is between two requests.
    assert times.stall.total >= sum(loading.taken) - (times.asked[1:] - times.loaded[:-1]).sum()


def test_wall_is_at_least_stall_and_compute_in_the_first_batch_and_in_the_rest() -> None:
    times = run(Delay(0.005), Delay(0.005), prefetch_size=2)
    for wall, stall, compute in (
        (times.wall.first, times.stall.first, times.compute.first),
        (times.wall.rest, times.stall.rest, times.compute.rest),
    ):
        assert wall + 1e-9 >= stall + compute
        assert wall - stall - compute < stall + compute
    assert (times.batches, times.samples) == (BATCHES, BATCHES)


def test_loading_alone_has_no_compute_and_its_wall_is_the_loading() -> None:
    loading = Delay(0.005)
    times = run(loading, None, prefetch_size=0)
    assert times.wall.total >= sum(loading.taken)
    assert times.compute.total < sum(loading.taken)


def test_the_end_of_an_iterator_counts_as_stall() -> None:
    end = Delay(0.05)

    def batches() -> Iterator[etl.Batch]:
        yield etl.Batch(np.zeros((2, 3)), None)
        end()

    times = run_epoch(batches(), None)
    assert times.stall.end >= end.taken[0]
    assert times.wall.end >= end.taken[0]
    assert times.samples == 2


def test_what_abandoning_an_epoch_takes_is_not_timed() -> None:
    ended = []

    def batches() -> Iterator[etl.Batch]:
        try:
            while True:
                yield etl.Batch(np.zeros((2, 3)), None)
        finally:
            ended.append(True)

    class Endless:
        def __iter__(self) -> Iterator[etl.Batch]:
            return batches()

    with Epochs(MeasuredLoader(Endless, lambda _: None, [], is_cold=False), 3) as epochs:
        for epoch in range(2):
            epochs.prepare()
            assert len(ended) == epoch
            assert run_epoch(epochs, None).batches == 3
            assert len(ended) == epoch
    assert len(ended) == 2


def test_the_start_of_an_iterator_counts_as_the_wait_for_the_first_batch() -> None:
    start = Delay(0.05)

    class SlowStart:
        def __iter__(self) -> Iterator[etl.Batch]:
            start()
            return iter([etl.Batch(np.zeros((2, 3)), None)])

    assert run_epoch(SlowStart(), None).stall.first >= start.taken[0]


def test_an_iterator_that_yields_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the iterator gave no batch"):
        run_epoch([], None)


class Held(etl.Batch):
    """A batch that notes when it is released."""

    released: ClassVar[list[float]] = []

    def __del__(self) -> None:
        self.released.append(float(self.features[0, 0]))


def test_a_batch_lives_until_the_next_one_is_there_as_in_a_for_loop() -> None:
    def released_before_each(run: Callable[[Iterator[Held]], object]) -> list[list[float]]:
        found: list[list[float]] = []
        Held.released.clear()

        def batches() -> Iterator[Held]:
            for number in range(4):
                found.append(list(Held.released))
                yield Held(np.full((1, 1), number), None)

        run(batches())
        return found

    def loop(batches: Iterator[Held]) -> None:
        for batch in batches:
            touch(batch)

    expected = [[], [], [0], [0, 1]]
    assert released_before_each(loop) == expected
    assert released_before_each(lambda batches: run_epoch(batches, None)) == expected


def test_times_are_split_after_the_start_up() -> None:
    moments = np.arange(1.0, 7.0)
    times = EpochTimes(0.0, moments - 0.75, moments - 0.5, moments - 0.5, moments, 6.0, 6.25, 6.25, 6, start_up=2)
    assert (times.wall, times.compute) == (Split(2.0, 4.0, 0.25), Split(1.0, 2.0))
    assert (times.host_wait, times.stall) == (Split(0.5, 1.0, 0.25), Split(0.5, 1.0, 0.25))
    assert times.metrics.start_up == 2


@pytest.mark.parametrize(("asked", "batches", "start_up"), [(1, 5, 1), (3, 5, 3), (9, 5, 4), (3, 1, 1), (0, 5, 1)])
def test_the_start_up_has_at_least_one_batch_and_leaves_one_if_it_can(asked: int, batches: int, start_up: int) -> None:
    assert run_epoch([np.zeros((1, 1))] * batches, None, start_up=asked).start_up == start_up


# Some of the batches, and all of them.
@pytest.mark.parametrize(("start_up", "measured"), [(1, 2), (3, 7), (4, 62.5)])
def test_all_batches_after_the_start_up_are_scaled_alike(start_up: int, measured: float) -> None:
    first, each, end, batches = 0.7, 0.03, 0.2, 62.5
    scaled = Split(first, each * (measured - start_up), end).scaled(measured, batches, start_up)
    assert scaled == pytest.approx(first + each * (batches - start_up) + end)
    # Batches of the start-up alone are scaled as a whole.
    assert Split(first, 0.0).scaled(start_up, batches, start_up) == pytest.approx(first * batches / start_up)


def test_means_of_epochs() -> None:
    one, other = (run_epoch([np.zeros((2, 1))] * 3, None).metrics for _ in range(2))
    mean = EpochMetrics.mean([one, other])
    assert (mean.batches, mean.samples) == (3, 6)
    assert mean.wall.total == pytest.approx((one.wall.total + other.wall.total) / 2)


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


def resident_nbytes(name: str) -> int:
    """Return the bytes of the mapped file that this process has touched, from /proc/self/smaps."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.endswith(name):
            inside = True
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{name} is not mapped")
