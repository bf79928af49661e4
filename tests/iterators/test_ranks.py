"""Ranks that train together get the same number of batches, and none waits for another forever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import etl
import presave
from etl.loading.sampler import Uneven
from tests.iterators.distributed_training import BATCH_SIZE, EPOCHS, WORLD_SIZE, Numbered
from tests.sequences import Sequences, sequences

LIMIT_SECONDS = 120
NOTHING = etl.Pipeline([])
STRATEGIES = ["raw", "presaved", "threads", "threads presaved", "one thread", "processes"]
# Of 23 records in batches of 3 for 2 ranks: all of the first batch, one of the second, and both ranks' third.
BAD = {0, 1, 2, 4, 12, 13, 14, 15, 16, 17}
COUNT = 23


def refuse_bad(record: etl.Record) -> etl.Record:
    if int(record["label"]) in BAD:
        raise ValueError(f"number {record['label']} is bad")
    return record


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    folder = tmp_path_factory.mktemp("data") / "store"
    with presave.write(folder, etl.records(Numbered(COUNT, []), NOTHING)) as opened:
        yield opened


def make_iterator(strategy: str, store: presave.Store, batch_size: int = 3, **options: Any) -> Any:
    pipeline = etl.Pipeline([refuse_bad] if options.get("on_error") == "skip" else [])
    raw: Any = etl.RawIterator(Numbered(COUNT, []), pipeline, batch_size, **options)
    if "presaved" in strategy:
        # What a store is finished with is not part of the pipeline that wrote it.
        raw = etl.PresavedIterator(store, pipeline, batch_size, **options)
    if "thread" in strategy:
        return etl.AsyncIterator(raw, threads=1 if strategy.startswith("one") else 3)
    return etl.AsyncIterator(raw, workers="process", processes=1) if strategy == "processes" else raw


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


def train(folder: Path, strategies: list[str], **case: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What each of two ranks has found in a real training with each of the strategies; a rank that waits forever is
    killed, and fails the test.
    """
    (folder / "cases.json").write_text(json.dumps([{**case, "strategy": strategy} for strategy in strategies]))
    presave.write(folder / f"store{case['count']}", etl.records(Numbered(case["count"], []), NOTHING)).close()
    script = Path(__file__).with_name("distributed_training.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, folder, str(rank)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_SECONDS)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(WORLD_SIZE))
    assert len(first) == len(second) == len(strategies)
    return zip(first, second, strict=True)


@pytest.mark.slow
def test_two_ranks_train_to_the_end_if_records_do_not_divide_evenly(tmp_path: Path) -> None:
    strategies = ["raw", "presaved", "threads", "processes"]
    for first, second in train(tmp_path, strategies, count=65, shuffle=True, on_error="raise", bad=[]):
        assert first["lengths"] == second["lengths"] == [BATCH_SIZE] * 4 + [1]
        assert first["steps"] == second["steps"] == 5 * EPOCHS
        assert first["samples"] == second["samples"] == 33 * EPOCHS  # repeated ones count
        assert first["weights"] == second["weights"]
        assert first["delivered"] == second["delivered"] == [1] * 65


@pytest.mark.slow
def test_two_ranks_train_to_the_end_if_one_has_a_batch_of_bad_records(tmp_path: Path) -> None:
    # All of the first batch of rank 0, and one of the last of rank 1.
    bad = [*range(BATCH_SIZE), 60]
    for first, second in train(tmp_path, ["raw", "threads"], count=64, shuffle=False, on_error="skip", bad=bad):
        assert first["lengths"] == [8, 8, 8, 8]
        assert second["lengths"] == [8, 8, 8, 7]
        assert first["steps"] == second["steps"] == 4 * EPOCHS
        assert first["weights"] == second["weights"]
        assert first["delivered"] == second["delivered"] == [int(number not in bad) for number in range(64)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [3, 5])
def test_ranks_are_padded_alike_in_every_strategy(store: presave.Store, strategy: str, world_size: int) -> None:
    numbers, marked = [], 0
    for rank in range(world_size) if strategy != "processes" else [world_size - 1]:
        plain = make_iterator("raw", store, shuffle=True).shard(rank, world_size)
        with make_iterator(strategy, store, shuffle=True).shard(rank, world_size) as part:
            expected = [bits(batch) for _ in range(2) for batch in plain]
            assert [bits(batch) for _ in range(2) for batch in part] == expected
            assert len(expected) == 2 * len(part) == 2 * -(-COUNT // (3 * world_size))
        for _, labels, repeated in expected[: len(part)]:
            marked += sum(repeated or [])
            numbers += [label for row, label in enumerate(labels) if repeated is None or not repeated[row]]
    # 3 ranks share 5 records in the last step, and 5 ranks 8.
    missing = {3: 1, 5: 2}[world_size]
    assert marked == (1 if strategy == "processes" else missing)
    assert strategy == "processes" or sorted(numbers) == list(range(COUNT))


def test_the_records_missing_from_the_last_step_are_those_at_the_start_of_the_epoch(store: presave.Store) -> None:
    parts = [make_iterator("raw", store).shard(rank, 3) for rank in range(3)]
    assert [marks(part)[2:] for part in parts] == [
        [([18, 19], None)],
        [([20, 21], None)],
        [([22, 0], [False, True])],
    ]
    few = [marks(etl.RawIterator(Numbered(2, []), NOTHING, 4).shard(rank, 5)) for rank in range(5)]
    assert few == [[([0], None)], [([1], None)], [([0], [True])], [([1], [True])], [([0], [True])]]


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


@pytest.mark.parametrize(("uneven", "counts"), [("pad", [4, 4, 4]), ("drop", [3, 3, 3]), ("allow", [4, 4, 3])])
def test_fewer_records_left_than_ranks_are_a_batch_for_all_or_for_none(uneven: Uneven, counts: list[int]) -> None:
    whole = etl.RawIterator(Numbered(20, []), NOTHING, 2, shuffle=True)
    parts = [whole.shard(rank, 3, uneven=uneven) for rank in range(3)]
    for _ in range(2):
        assert [len(list(part)) for part in parts] == [len(part) for part in parts] == counts
    assert [part.epoch for part in parts] == [2, 2, 2]


@pytest.mark.parametrize("uneven", ["pad", "drop", "allow"])
def test_one_rank_gets_what_the_iterator_gives(store: presave.Store, uneven: Uneven) -> None:
    for strategy in ("raw", "threads presaved"):
        whole = make_iterator("raw", store, shuffle=True)
        alone = make_iterator(strategy, store, shuffle=True).shard(0, 1, uneven=uneven)
        assert [bits(batch) for batch in alone] == [bits(batch) for batch in whole]
        states = [each.state_dict() for each in (alone, whole)]
        # A store says which records it holds, and these plain records do not.
        assert {**states[0], "digests": None} == {**states[1], "digests": None}


@pytest.mark.parametrize("after", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_run_resumed_with_other_ranks_marks_all_but_one_copy_of_each_record(
    store: presave.Store, steps: int, after: int
) -> None:
    seen: list[int] = []

    def take(batches: Any) -> int:
        found = marks(batches)
        for labels, repeated in found:
            seen.extend(label for row, label in enumerate(labels) if repeated is None or not repeated[row])
        return len(found)

    ranks = [make_iterator("threads", store, shuffle=True).shard(rank, 2) for rank in range(2)]
    for rank in ranks:
        take(islice(rank, steps))
    states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
    assert states[0] == states[1]
    assert (states[0]["epoch"], states[0]["position"]) == ((0, 6 * steps) if steps < 4 else (1, 0))
    if steps < 4:
        others = [make_iterator("presaved", store, 4, shuffle=True).shard(rank, after) for rank in range(after)]
        for other in others:
            other.load_state_dict(states[0])
        assert {take(other) for other in others} == {-(-(COUNT - 6 * steps) // (4 * after))}
        assert {other.epoch for other in others} == {1}
    assert sorted(seen) == list(range(COUNT))


def test_a_state_from_before_ranks_were_padded_can_be_resumed(store: presave.Store) -> None:
    part = make_iterator("raw", store).shard(1, 2)
    part.load_state_dict({"epoch": 4, "position": 18, "records": COUNT, "shuffle": False, "seed": 0})
    assert marks(part) == [([21, 22, 0], [False, False, True])]
    assert part.epoch == 5


def test_sequences_in_buckets_are_padded_to_as_many_batches(tmp_path: Path) -> None:
    source = Sequences(sequences(50))
    presave.write(tmp_path / "store", etl.records(source, NOTHING), ragged=["features"]).close()
    options: dict[str, Any] = {"shuffle": True, "padding": etl.Padding(), "bucket_records": 20}
    found = []
    for rank in range(3):
        raw = etl.RawIterator(source, NOTHING, 4, **options).shard(rank, 3)
        with etl.PresavedIterator(tmp_path / "store", NOTHING, 4, **options) as saved:
            expected = [bits(batch) for batch in raw]
            assert [bits(batch) for batch in etl.AsyncIterator(saved.shard(rank, 3))] == expected
        found.append([repeated for _, _, repeated in expected])
    assert found == [[None] * 5, [None] * 5, [None] * 4 + [[True]]]


def test_masks_of_a_padded_batch_have_a_row_for_the_repeated_record() -> None:
    options: dict[str, Any] = {"padding": etl.Padding()}
    part = etl.RawIterator(Sequences(sequences(5)), NOTHING, 3, **options).shard(1, 2)
    first, *others = part
    assert not others
    assert first.repeated.tolist() == [False, False, True]
    assert first.features_mask.shape == first.features.shape[:2]
    assert first.features_mask.sum(axis=1).tolist() == [len(sequences(5)[number]["features"]) for number in (3, 4, 0)]


@pytest.mark.parametrize("strategy", STRATEGIES)
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


@pytest.mark.parametrize("saved_by", ["raw", "threads presaved"])
@pytest.mark.parametrize("loaded_by", ["presaved", "threads"])
def test_filled_batches_are_the_same_after_a_resume(store: presave.Store, saved_by: str, loaded_by: str) -> None:
    for rank in range(2):
        options: dict[str, Any] = {"on_error": "skip", "shuffle": True}
        whole = quietly(make_iterator("raw", store, 2, **options).shard(rank, 2), epochs=3)
        assert any(repeated is not None and all(repeated) for _, _, repeated in whole)
        for steps in range(1, 6):
            first = make_iterator(saved_by, store, 2, **options).shard(rank, 2)
            second = make_iterator(loaded_by, store, 2, **options).shard(rank, 2)
            begun = [bits(batch) for batch in islice(first, steps)]
            second.load_state_dict(first.state_dict())
            assert begun + quietly(second, epochs=3) == whole


@pytest.mark.parametrize("strategy", ["raw", "threads", "presaved"])
def test_with_uneven_allow_a_batch_of_bad_records_is_not_replaced(store: presave.Store, strategy: str) -> None:
    part = make_iterator(strategy, store, on_error="skip").shard(0, 2, uneven="allow")
    assert [labels for _, labels, _ in quietly(part)] == [[6, 7, 8], [18, 19, 20]]
    alone = make_iterator(strategy, store, on_error="skip").shard(0, 1)
    assert [labels for _, labels, _ in quietly(alone)][:2] == [[3, 5], [6, 7, 8]]


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
            super().__init__(41, list(range(30)))
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
    source = Numbered(9, [])
    raw = etl.RawIterator(source, NOTHING, 2, on_error="skip").shard(1, 2)
    part: Any = etl.AsyncIterator(raw, threads=threads) if threads else raw
    good = quietly(part)
    source.bad = frozenset(range(9))
    message = (
        r"record 2 of Numbered: failed at stage 'read': number 2 is bad; no other record of its batch or of "
        r"epoch 1 can be loaded .* rank 1 of 2 would get one fewer than the others: .*uneven=\"allow\"\)"
    )
    with pytest.raises(etl.RecordError, match=message):
        list(part)
    assert part.state_dict()["position"] == 0
    source.bad = frozenset()
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
    part = etl.RawIterator(Sequences(sequences(5)), NOTHING, 3, padding=etl.Padding()).shard(1, 2)
    ((_, _, mask, labels_mask, repeated),) = etl.TorchDataset(part, marks_repeated=True)
    assert mask.shape[0] == 3
    assert labels_mask is None
    assert repeated.tolist() == [False, False, True]


def test_synthetic_batches_are_whole_on_every_rank_and_none_is_marked() -> None:
    whole = etl.SyntheticIterator((3,), 2, batches=5, batch_size=4)
    for uneven in ("pad", "drop", "allow"):
        assert [(len(batch), batch.repeated) for batch in whole.shard(2, 3, uneven)] == [(4, None)] * 5


def test_repeated_records_are_trained_on_and_counted(store: presave.Store) -> None:
    model = etl.models.create("mlp", (3,), COUNT, seed=0)
    part = make_iterator("raw", store).shard(2, 3)
    assert etl.fit(model, part, backend="cpu").samples == 8
