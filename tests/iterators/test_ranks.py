"""Ranks that train together get the same number of batches, and none waits for another forever."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
import presave
from etl.loading import Padding
from etl.loading.sampler import Uneven
from etl.sources import Record, RecordError
from etl.training import fit_parallel
from tests.sequences import Sequences, sequences

NOTHING = etl.Pipeline([])
# Of 23 records in batches of 3 for 2 ranks: all of the first batch, one of the second, and both ranks' third.
BAD = {0, 1, 2, 4, 12, 13, 14, 15, 16, 17}
COUNT = 23


class Numbered:
    """Records told by their number; those in `bad` cannot be loaded."""

    def __init__(self, count: int = COUNT, bad: Collection[int] = ()) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise OSError(f"number {index} is bad")
        return {"features": np.full(3, index, np.float32), "label": index}


def refuse_bad(record: Record) -> Record:
    if int(record["label"]) in BAD:
        raise ValueError(f"number {record['label']} is bad")
    return record


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    folder = tmp_path_factory.mktemp("data") / "store"
    with presave.write(folder, etl.records(Numbered(), NOTHING)) as opened:
        yield opened


def make_iterator(strategy: str, store: presave.Store, batch_size: int = 3, **options: Any) -> Any:
    pipeline = etl.Pipeline([refuse_bad] if options.get("on_error") == "skip" else [])
    raw: Any = etl.RawIterator(Numbered(), pipeline, batch_size, **options)
    if "presaved" in strategy:
        # What a store is finished with is not part of the pipeline that wrote it.
        raw = etl.PresavedIterator(store, pipeline, batch_size, **options)
    return etl.AsyncIterator(raw, threads=3) if "threads" in strategy else raw


def bits(batch: etl.Batch) -> tuple[list[bytes], list[int], list[bool] | None]:
    repeated = None if batch.repeated is None else batch.repeated.tolist()
    return [array.tobytes() for array in batch.arrays()], batch.labels.tolist(), repeated


def marks(batches: Any) -> list[tuple[list[int], list[bool] | None]]:
    return [bits(batch)[1:] for batch in batches]


def quietly(batches: Any, epochs: int = 1) -> list[Any]:
    """Return the bits of whole epochs, without their warnings of skipped records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [bits(batch) for _ in range(epochs) for batch in batches]


def unmarked(batches: Any) -> list[int]:
    """Return the labels of all but repeated records."""
    return [
        label
        for labels, repeated in marks(batches)
        for label, again in zip(labels, repeated or [False] * len(labels), strict=True)
        if not again
    ]


@pytest.mark.slow
def test_two_ranks_train_to_the_end_though_one_has_a_batch_of_bad_records_and_the_last_step_is_uneven() -> None:
    def make_iterator() -> etl.AsyncIterator:
        # The first batch of rank 0 is bad, and so is the record that rank 1 would repeat in the last step.
        raw = etl.RawIterator(Numbered(33, range(8)), NOTHING, 8, on_error="skip")
        return etl.AsyncIterator(raw, threads=2)

    result = fit_parallel(
        lambda: torch.nn.Linear(3, 33), make_iterator, workers=2, backend="cpu", epochs=2, learning_rate=1e-6
    )
    assert [(each.rank, each.samples) for each in result.ranks] == [(0, 2 * 17), (1, 2 * 17)]


@pytest.mark.parametrize("strategy", ["presaved", "threads", "threads presaved"])
def test_ranks_are_padded_alike_in_every_strategy(store: presave.Store, strategy: str) -> None:
    for rank in range(3):
        plain, part = (make_iterator(each, store, shuffle=True).shard(rank, 3) for each in ("raw", strategy))
        for _ in range(2):
            assert [bits(batch) for batch in part] == [bits(batch) for batch in plain]
        assert len(part) == 3
        assert part.epoch == 2


@pytest.mark.parametrize(
    ("uneven", "last"),
    [
        ("pad", [([18, 19], None), ([20, 21], None), ([22, 0], [False, True])]),
        ("drop", [([18], None), ([19], None), ([20], None)]),
        ("allow", [([18, 19], None), ([20, 21], None), ([22], None)]),
    ],
)
def test_the_last_step_is_shared_as_asked_for(store: presave.Store, uneven: Uneven, last: Any) -> None:
    for strategy in ("raw", "presaved", "threads"):
        parts = [make_iterator(strategy, store).shard(rank, 3, uneven=uneven) for rank in range(3)]
        assert [marks(part)[-1] for part in parts] == last
        assert [len(part) for part in parts] == [3, 3, 3]


@settings(max_examples=60)
@given(
    *[st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 23)],
    st.sampled_from(get_args(Uneven)[::2]),
)
def test_a_run_resumed_with_other_ranks_and_batches_sees_each_record_left_once(
    store: presave.Store, before: int, after: int, batch_before: int, batch_after: int, steps: int, uneven: Uneven
) -> None:
    whole = make_iterator("raw", store, batch_before, shuffle=True)
    ranks = [whole.shard(rank, before, uneven) for rank in range(before)]
    steps = min(steps, *map(len, ranks))
    seen = [label for rank in ranks for label in unmarked(islice(rank, steps))]
    states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
    assert all(state == states[0] for state in states)
    if states[0]["epoch"] == 0:
        other = make_iterator("presaved", store, batch_after, shuffle=True)
        for rank in range(after):
            part = other.shard(rank, after, uneven)
            part.load_state_dict(states[0])
            seen += unmarked(part)
            assert part.epoch == 1
    assert sorted(seen) == list(range(COUNT))


def test_a_state_from_before_ranks_were_padded_can_be_resumed(store: presave.Store) -> None:
    part = make_iterator("raw", store).shard(1, 2)
    part.load_state_dict({"epoch": 4, "position": 18, "records": COUNT, "shuffle": False, "seed": 0})
    assert marks(part) == [([21, 22, 0], [False, False, True])]
    assert part.epoch == 5


@pytest.mark.parametrize("strategy", ["raw", "threads"])
def test_the_state_of_ranks_that_numpy_has_counted_is_json(store: presave.Store, strategy: str) -> None:
    part = make_iterator(strategy, store).shard(np.int64(1), np.int64(2))
    next(iter(part))
    state = json.loads(json.dumps(part.state_dict()))
    part.load_state_dict(part.state_dict())
    assert state["position"] == 6


def test_masks_of_a_padded_batch_have_a_row_for_the_repeated_record() -> None:
    options: dict[str, Any] = {"padding": Padding()}
    part = etl.RawIterator(Sequences(sequences(5)), NOTHING, 3, **options).shard(1, 2)
    first, *others = part
    assert not others
    assert first.repeated.tolist() == [False, False, True]
    assert first.features_mask.shape == first.features.shape[:2]
    assert first.features_mask.sum(axis=1).tolist() == [len(sequences(5)[number]["features"]) for number in (3, 4, 0)]


@pytest.mark.parametrize("strategy", ["raw", "threads", "threads presaved"])
def test_a_batch_of_bad_records_is_filled_from_the_start_of_the_epoch(store: presave.Store, strategy: str) -> None:
    def run(rank: int) -> list[Any]:
        with make_iterator(strategy, store, on_error="skip").shard(rank, 2) as part:
            found = quietly(part)
            assert len(found) == len(part) == 4
            return [each[1:] for each in found]

    assert run(0) == [
        ([3, 5], [True, True]),  # 3, 4 and 5 are the first of which one is good
        ([6, 7, 8], None),
        ([3, 5], [True, True]),
        ([18, 19, 20], None),
    ]
    assert run(1) == [
        ([3, 5], None),
        ([9, 10, 11], None),
        ([3, 5], [True, True]),
        ([21, 22], None),  # record 0, which it would repeat, is bad
    ]


@pytest.mark.parametrize(("saved_by", "loaded_by"), [("raw", "threads"), ("threads presaved", "presaved")])
def test_filled_batches_are_the_same_after_a_resume(store: presave.Store, saved_by: str, loaded_by: str) -> None:
    for rank in range(2):
        options: dict[str, Any] = {"on_error": "skip", "shuffle": True}
        whole = quietly(make_iterator("raw", store, 2, **options).shard(rank, 2), epochs=2)
        assert any(repeated is not None and all(repeated) for _, _, repeated in whole)
        for steps in (1, 3, 5):
            first = make_iterator(saved_by, store, 2, **options).shard(rank, 2)
            second = make_iterator(loaded_by, store, 2, **options).shard(rank, 2)
            begun = [bits(batch) for batch in islice(first, steps)]
            second.load_state_dict(first.state_dict())
            assert begun + quietly(second, epochs=2) == whole


@pytest.mark.parametrize("strategy", ["raw", "threads"])
def test_with_uneven_allow_a_batch_of_bad_records_is_not_replaced(store: presave.Store, strategy: str) -> None:
    part = make_iterator(strategy, store, on_error="skip").shard(0, 2, uneven="allow")
    assert [labels for _, labels, _ in quietly(part)] == [[6, 7, 8], [18, 19, 20]]
    alone = make_iterator(strategy, store, on_error="skip").shard(0, 1)
    assert [labels for _, labels, _ in quietly(alone)][:2] == [[3, 5], [6, 7, 8]]


@pytest.mark.parametrize("strategy", ["raw", "threads"])
def test_a_rank_that_gets_nothing_of_the_last_step_ends_its_epoch_before_it(
    store: presave.Store, strategy: str
) -> None:
    plain, part = (make_iterator(each, store, 11, shuffle=True).shard(1, 2, "allow") for each in ("raw", strategy))
    assert len(part) == 1
    for _ in range(3):
        assert bits(next(iter(part))) == bits(*plain)


@pytest.mark.parametrize("strategy", ["raw", "threads"])
def test_all_ranks_together_count_each_bad_record_once(store: presave.Store, strategy: str) -> None:
    for uneven in ("pad", "allow"):
        # Rank 1 repeats record 0 in its last batch, which is bad.
        for rank, count in ((0, 6), (1, 4)):
            part = make_iterator(strategy, store, on_error="skip").shard(rank, 2, uneven)
            with pytest.warns(UserWarning, match=f"epoch 0 left out {count} of {COUNT} records"):
                list(part)


def test_bad_records_at_the_start_of_the_epoch_are_tried_once_to_fill_all_batches() -> None:
    class Counted(Numbered):
        def __init__(self) -> None:
            super().__init__(41, range(30))
            self.read: list[int] = []

        def __getitem__(self, index: int) -> dict[str, Any]:
            self.read.append(index)
            return super().__getitem__(index)

    source = Counted()
    part = etl.RawIterator(source, NOTHING, 2, on_error="skip").shard(1, 2)
    expected = quietly(part)
    assert [labels for _, labels, _ in expected] == [[30, 31]] * 8 + [[34, 35], [38, 39], [30]]
    source.read.clear()  # the records that were read to plan the first batch
    assert quietly(part) == expected
    # To fill batches of two, as the one missing from the last step, and to fill that.
    assert source.read.count(0) == 3
    assert source.read.count(30) == 9


@pytest.mark.parametrize("threads", [0, 2])
def test_an_epoch_without_a_good_record_is_an_error_that_names_one_and_what_to_do(threads: int) -> None:
    source = Numbered(9)
    raw = etl.RawIterator(source, NOTHING, 2, on_error="skip").shard(1, 2)
    part: Any = etl.AsyncIterator(raw, threads=threads) if threads else raw
    good = quietly(part)
    source.bad = range(9)
    message = (
        r"record 2 of Numbered: failed at stage 'read': number 2 is bad; no other record of its batch or of "
        r"epoch 1 can be loaded .* rank 1 of 2 would get one fewer than the others: .*uneven=\"allow\"\)"
    )
    with pytest.raises(RecordError, match=message):
        list(part)
    assert part.state_dict()["position"] == 0
    source.bad = ()
    assert quietly(part) == good  # it begins again


def test_the_mark_reaches_the_device_and_is_handed_on_by_a_torch_dataset_if_asked_for(store: presave.Store) -> None:
    def make() -> Any:
        return make_iterator("threads", store).shard(2, 3)

    on_device = [batch.repeated for batch in etl.DeviceIterator(make(), "cpu", finish=NOTHING)]
    assert on_device[:2] == [None, None]
    assert torch.equal(on_device[2], torch.tensor([False, True]))
    finished = etl.DeviceIterator(make(), "cpu", finish=etl.Pipeline([etl.stages.Cast("float32")]))
    assert torch.equal(list(finished)[2].repeated, on_device[2])
    shard = etl.DeviceIterator(make_iterator("raw", store), "cpu").shard(2, 3, uneven="drop")
    assert [batch.repeated for batch in shard] == [None] * 3
    assert [len(each) for each in etl.TorchDataset(make())] == [2, 2, 2]
    marked = list(etl.TorchDataset(make(), marks_repeated=True))
    assert [repeated.tolist() for _, _, repeated in marked] == [[False] * 3, [False] * 3, [False, True]]
    assert all(repeated.dtype == torch.bool for _, _, repeated in marked)


def test_a_torch_dataset_puts_the_mark_behind_masks() -> None:
    part = etl.RawIterator(Sequences(sequences(5)), NOTHING, 3, padding=Padding()).shard(1, 2)
    ((_, _, mask, labels_mask, repeated),) = etl.TorchDataset(part, marks_repeated=True)
    assert mask.shape[0] == 3
    assert labels_mask is None
    assert repeated.tolist() == [False, False, True]
