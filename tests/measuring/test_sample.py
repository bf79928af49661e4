"""A sample is what a loader does from its first batch on, whatever it does between epochs and after the last one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from etl.measuring.clock import Span, Split
from etl.measuring.epochs import Epochs, MeasuredLoader
from etl.measuring.sample import WARM_UP_STEPS, Recipe, Sample, first_copies, take_sample
from etl.training.compute import Simulated
from tests.comparison_workloads import make_sample

BATCHES = 6
MADE, EPOCH, STEP, CLOSED = "made", "epoch", "step", "closed"


class Loader:
    """A loader that notes what is done with it."""

    def __init__(self, seen: list[str], shapes: Any = ((4, 2),)) -> None:
        self._seen = seen
        self._shapes = shapes
        seen.append(MADE)

    def __iter__(self) -> Iterator[np.ndarray]:
        self._seen.append(EPOCH)
        return (np.zeros(self._shapes[number % len(self._shapes)]) for number in range(BATCHES))

    def close(self) -> None:
        """Note it."""
        self._seen.append(CLOSED)


def sample_of(seen: list[str], is_cold: bool = False, shapes: Any = ((4, 2),), **recipe: Any) -> Sample:
    class Noted(Simulated):
        def __call__(self, batch: Any) -> None:
            seen.append(STEP)
            super().__call__(batch)

    loading = MeasuredLoader(
        lambda: Loader(seen, shapes), lambda batch: Noted(0.0, True), [], is_cold=is_cold, is_ahead=True
    )
    return take_sample(loading, Recipe(**recipe))


FIRST_LOOK = [MADE, EPOCH, CLOSED, *[STEP] * WARM_UP_STEPS]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Nothing of the timed loader runs before its epoch.
        ({}, [MADE, EPOCH, *[STEP] * BATCHES, CLOSED]),
        # Loading alone has a loader of its own, and comes last, after compute: it leaves nothing to the timed epoch.
        ({"etl_alone": True}, [MADE, EPOCH, *[STEP] * BATCHES, CLOSED, STEP, MADE, EPOCH, CLOSED]),
        # Short epochs are repeated without a pause.
        ({"epochs": 3}, [MADE, *[EPOCH, *[STEP] * BATCHES] * 3, CLOSED]),
        # The loader of each cold epoch is made when its files are out of memory.
        ({"is_cold": True, "epochs": 2}, [MADE, *[CLOSED, MADE, EPOCH, *[STEP] * BATCHES] * 2, CLOSED]),
    ],
    ids=["one epoch", "loading alone", "several epochs", "cold"],
)
def test_what_is_timed_begins_with_a_new_loader(given: dict[str, Any], expected: list[str]) -> None:
    seen: list[str] = []
    sample = sample_of(seen, **given)
    assert seen[: len(FIRST_LOOK) + len(expected)] == [*FIRST_LOOK, *expected]
    assert (sample.etl_alone is not None) == ("etl_alone" in given)
    # Times of several epochs are means.
    assert (sample.epoch.batches, sample.epoch.samples) == (BATCHES, 4 * BATCHES)
    assert [len(each) for each in sample.stalls] == [BATCHES] * given.get("epochs", 1)


def test_some_batches_of_an_epoch_and_the_start_up_among_them() -> None:
    sample = sample_of([], batches=5, start_up=2)
    assert (sample.epoch.batches, sample.epoch.start_up) == (5, 2)
    assert sample_of([], start_up=9).epoch.start_up == BATCHES - 1


@pytest.mark.parametrize(("shapes", "copies"), [(((4, 2),), 1), (((4, 2), (4, 3)), BATCHES)])
def test_batches_of_one_layout_are_represented_by_one_and_others_by_many(shapes: Any, copies: int) -> None:
    loading = MeasuredLoader(lambda: Loader([], shapes), lambda batch: Simulated(0.0, True), [], is_cold=False)
    assert len(first_copies(loading)) == copies
    assert len(first_copies(loading, has_one_layout=True)) == 1


def test_of_texts_without_end_no_more_batches_are_copied_than_are_measured() -> None:
    taken: list[int] = []

    def texts() -> Iterator[np.ndarray]:
        for number in itertools.count():
            taken.append(number)
            yield np.zeros((4, 2 + number % 7))  # each batch is padded to its longest text

    loading = MeasuredLoader(texts, lambda batch: Simulated(0.0, True), [], is_cold=False)
    take_sample(loading, Recipe(batches=BATCHES))
    assert taken == [*range(BATCHES)] * 2


class Converted:
    """An array that only a copy shows, as one on a device."""

    def __init__(self, columns: int) -> None:
        self._columns = columns

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.zeros((4, self._columns))


def test_copies_take_as_much_memory_as_they_may_wherever_their_arrays_are(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = MeasuredLoader(lambda: map(Converted, range(2, 8)), lambda _: Simulated(0.0, True), [], is_cold=False)
    monkeypatch.setattr("etl.measuring.sample.RESIDENT_NBYTES", 100)
    assert len(first_copies(loading)) == 2  # of 64 and 96 bytes


def test_the_transfer_is_that_of_the_timed_epoch() -> None:
    class Copying(Simulated):
        """A device to which each batch is copied in a second."""

        def finish(self) -> list[Span]:
            spans = super().finish()
            self.transfers = [1.0] * len(spans)
            return spans

    loading = MeasuredLoader(lambda: Loader([]), lambda _: Copying(0.0, True), [], is_cold=False)
    assert take_sample(loading, Recipe(start_up=2)).transfer == Split(2.0, BATCHES - 2.0)


def test_a_loader_that_cannot_be_made_again_is_its_own_error() -> None:
    class Rewound(Loader):
        def set_epoch(self, epoch: int) -> None:
            """Begin again."""

    left = [Rewound([])]
    loading = MeasuredLoader(left.pop, lambda _: Simulated(0.0, True), [], is_cold=True, can_rewind=True)
    with pytest.raises(IndexError, match="pop from empty list"), Epochs(loading) as epochs:
        epochs.prepare()


def test_a_loader_without_batches_is_an_error() -> None:
    loading = MeasuredLoader(list, lambda batch: Simulated(0.0, True), [], is_cold=False)
    with pytest.raises(ValueError, match="no batches"):
        take_sample(loading, Recipe())


@pytest.mark.parametrize(
    ("batches", "message"), [(None, "records: 24, 20"), (BATCHES, "batches: 6, 5"), (BATCHES - 1, "")]
)
def test_epochs_of_different_lengths_are_an_error(batches: int | None, message: str) -> None:
    class Shrinking:
        epochs = 0

        def __iter__(self) -> Iterator[np.ndarray]:
            self.epochs += 1
            return iter([np.zeros((4, 2))] * (BATCHES + 1 - self.epochs))

    loading = MeasuredLoader(Shrinking, lambda batch: Simulated(0.0, True), [], is_cold=False)
    if message:
        with pytest.raises(ValueError, match=f"its epochs have different numbers of {message}$"):
            take_sample(loading, Recipe(batches, epochs=2))
    else:
        assert take_sample(loading, Recipe(batches, epochs=2)).epoch.batches == batches


def test_what_is_in_no_part_of_the_wall_time_is_unexplained() -> None:
    sample = make_sample(wall=Split(0.05, 0.20), harness=0.004)  # 10 batches; stalls and steps take 0.1 s each
    assert sample.unexplained == pytest.approx(0.01 / 0.25)


def test_the_stall_before_the_first_batch_is_a_mean_of_epochs_like_all_stalls() -> None:
    assert make_sample(stalls=[[0.3, 0.1], [0.1, 0.2]]).first_stall == pytest.approx(0.2)
