"""Sequences of different lengths: padded alike by every strategy, with masks; and what cannot be padded."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import etl
import presave
from etl.loading import Padding
from etl.sources import Record, RecordError
from etl.stages import ChannelsFirst, Normalise
from etl.stages.cursor import ThreadCursor
from tests.every_strategy import STRATEGIES, bits, iterate
from tests.sequences import (
    INPUTS,
    NOTHING,
    Sequences,
    doubled,
    every_other_step,
    every_other_step_unsaid,
    sequences,
)

SHUFFLED: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 1}


@pytest.mark.parametrize(
    ("padding", "stage", "dtype", "per_step"),
    [
        (Padding(), doubled, "bfloat16", False),
        (Padding(-1.0, multiple_of=8), every_other_step, "float32", False),
        (Padding(length=19, label_value=-100, fields=["features", "label"]), doubled, "float32", True),
    ],
)
def test_every_strategy_pads_alike(tmp_path: Path, padding: Padding, stage: Any, dtype: str, per_step: bool) -> None:
    records, settings = sequences(per_step=per_step), {**SHUFFLED, "padding": padding, "dtype": dtype}
    expected = bits(iterate("raw", tmp_path, records, etl.Pipeline([stage]), **settings))
    with_lengths = [(strategy, Sequences(records)) for strategy in ("raw", "async raw")]
    for strategy, source in [*((strategy, records) for strategy in STRATEGIES[1:]), *with_lengths]:
        assert bits(iterate(strategy, tmp_path, source, etl.Pipeline([stage]), **settings)) == expected, strategy


def test_data_comes_first_then_padding_and_the_mask_marks_both() -> None:
    records = sequences(per_step=True)
    padding = Padding(9.0, multiple_of=4, label_value=-100, fields=["features", "label"])
    left = [record["features"].tobytes() for record in records]
    for batch in etl.RawIterator(records, NOTHING, **SHUFFLED, padding=padding):
        assert batch.features_mask.dtype == np.float32
        lengths = batch.features_mask.sum(axis=1).astype(int)
        assert batch.features.shape[1] == -(-lengths.max() // 4) * 4 == batch.labels.shape[1]
        for features, labels, mask, labels_mask, length in zip(
            batch.features, batch.labels, batch.features_mask, batch.labels_mask, lengths, strict=True
        ):
            left.remove(features[:length].tobytes())
            assert (features[length:] == 9).all()
            assert labels.tolist() == [*(features[:length, 0] > 0), *[-100] * (len(labels) - length)]
            assert mask.tolist() == labels_mask.tolist() == [1] * length + [0] * (len(mask) - length)
    assert not left


def test_reused_memory_holds_nothing_of_earlier_batches() -> None:
    random = np.random.default_rng(0)
    records = [{"features": np.full((length, 2000), 5, np.float32)} for length in random.integers(1, 9, 40)]
    for batch in etl.RawIterator(records, NOTHING, 4, padding=Padding(length=8)):
        assert batch.features.nbytes > 1 << 16
        assert (batch.features == 5 * batch.features_mask[:, :, None]).all()


@pytest.mark.parametrize("wrap", [list, etl.MapDataset])
@pytest.mark.parametrize("first", [0, 1])
def test_an_empty_list_has_the_dtype_of_the_other_records(wrap: Any, first: int) -> None:
    large = 2**24 + 1  # which float32 would round
    tokens: list[list[int]] = [[], [large, 7], [], [5]][first:]
    source = wrap([{"features": each, "label": number} for number, each in enumerate(tokens)])
    raw = etl.RawIterator(source, NOTHING, 4, padding=Padding())
    for iterator in (raw, etl.AsyncIterator(raw, threads=2)):
        (batch,) = iterator
        assert batch.features.dtype == np.int64
        assert batch.features.tolist() == [[0, 0], [large, 7], [0, 0], [5, 0]][first:]
        assert batch.features_mask.sum(axis=1).tolist() == list(map(len, tokens))


def test_records_that_are_all_empty_are_padded_all_the_same() -> None:
    records = [{"features": [], "label": number} for number in range(3)]
    (batch,) = etl.RawIterator(records, NOTHING, 4, padding=Padding())
    assert batch.features.tolist() == [[0]] * 3
    assert not batch.features_mask.any()


def test_labels_of_steps_are_padded_if_the_source_marks_them_ragged() -> None:
    source = Sequences(sequences(per_step=True))
    for batch in etl.RawIterator(source, NOTHING, 4, padding=Padding()):
        assert batch.labels.shape == batch.labels_mask.shape == batch.features_mask.shape
    source.ragged = "features"  # its letters would be names
    with pytest.raises(ValueError, match=r"ragged is a collection of names, such as \['features'\]"):
        etl.RawIterator(source, NOTHING, 4, padding=Padding())


@pytest.mark.parametrize("strategy", ["raw", "presaved early"])
def test_several_inputs_have_a_mask_each(tmp_path: Path, strategy: str) -> None:
    records = [
        {"features": (np.ones((first, 2)), np.ones(second, np.int64), 0.5), "label": first}
        for first, second in np.random.default_rng(3).integers(1, 9, (20, 2)).tolist()
    ]
    totals = np.zeros(2)
    for batch in iterate(
        strategy, tmp_path, records, etl.Pipeline([lambda record: dict(record)]), **SHUFFLED, padding=Padding()
    ):
        one, two, three = batch.features
        masks = batch.features_mask
        assert masks[2] is None
        assert [mask.sum(axis=1).max() for mask in masks[:2]] == [one.shape[1], two.shape[1]]
        assert (one == masks[0][..., None]).all()
        assert (two == masks[1]).all()
        assert (three == 0.5).all()
        assert masks[0].sum(axis=1).tolist() == batch.labels.tolist()
        totals += [mask.sum() for mask in masks[:2]]
    assert totals.tolist() == [sum(len(record["features"][place]) for record in records) for place in (0, 1)]


def test_a_records_own_mask_is_kept_and_padded_with_zeros() -> None:
    records = [
        {"features": np.ones((length, 2)), "features_mask": np.arange(length, dtype=np.uint8) % 2} for length in (4, 2)
    ]
    (batch,) = etl.RawIterator(records, NOTHING, padding=Padding())
    assert batch.features_mask.tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
    assert batch.features_mask.dtype == np.uint8


def test_each_record_is_processed_once_even_if_its_batch_is_loaded_to_find_lengths() -> None:
    calls: list[int] = []

    def counted(record: Record) -> Record:
        calls.append(int(record["label"]))
        return record

    records = [{"features": np.zeros((number % 5 + 1, 2)), "label": number} for number in range(20)]
    raw = etl.RawIterator(records, etl.Pipeline([counted]), 6, padding=Padding())
    assert len(list(raw)) == len(list(etl.AsyncIterator(raw, threads=2))) == 4
    assert sorted(calls) == sorted([*range(20)] * 2)


class Boxes(list[Record]):
    """Images with boxes; it knows how many boxes each has."""

    lengths: ClassVar[dict[str, list[int]]] = {"label": [2, 0, 3, 1]}


@pytest.mark.parametrize("strategy", ["raw", "presaved"])
def test_lengths_of_labels_are_known_beside_stages_that_change_those_of_features(tmp_path: Path, strategy: str) -> None:
    counts = Boxes.lengths["label"]
    records = Boxes({"features": np.ones((4, 5, 3), np.uint8), "label": np.ones((count, 4))} for count in counts)
    pipeline, padding = etl.Pipeline([ChannelsFirst(), Normalise()]), Padding(fields=["label"])
    iterator: Any = etl.RawIterator(records, pipeline, 4, padding=padding)
    if strategy == "presaved":
        store = presave.write(tmp_path / "s", etl.records(records, NOTHING), ragged=["label"])
        iterator = etl.PresavedIterator(store, pipeline, 4, padding=padding)
    assert not iterator.loader.plan(np.arange(4), 0, ThreadCursor()).is_finished  # by one thread
    (batch,) = iterator
    assert batch.features.shape == (4, 3, 4, 5)
    assert batch.labels.shape == (4, 3, 4)
    assert batch.labels_mask.sum(axis=1).tolist() == counts


def test_lengths_of_labels_are_unknown_if_a_users_stage_changes_lengths() -> None:
    class Flat:
        name = "flat"
        changes_length = True

        def __call__(self, record: Record) -> Record:
            return {**record, "label": record["label"][:1]}

    records = Boxes({"features": np.ones(3), "label": np.ones((2, 4))} for _ in range(4))
    (batch,) = etl.RawIterator(records, etl.Pipeline([Flat()]), 4, padding=Padding(fields=["label"]))
    assert batch.labels.shape == (4, 1, 4)


def test_a_record_that_fails_is_left_out_of_a_padded_batch() -> None:
    records = [*sequences(6), {"features": np.zeros((3, INPUTS + 1)), "label": 0}, {"label": 0}]
    raw = etl.RawIterator(records, NOTHING, 8, padding=Padding(), on_error="skip")
    with pytest.warns(UserWarning, match="epoch 0 left out 2 of 8 records"):
        (batch,) = raw
    assert batch.features_mask.sum(axis=1).tolist() == [len(record["features"]) for record in records[:6]]


def test_a_loader_that_was_pickled_pads_as_before(tmp_path: Path) -> None:
    pipeline = etl.Pipeline([every_other_step])
    iterator = iterate("presaved early", tmp_path, sequences(), pipeline, padding=Padding())
    indices = np.arange(6)
    fields = iterator.loader.plan(indices, 0, ThreadCursor()).fields
    arrays = [{n: np.full((6, *shape), 7, dtype) for n, (shape, dtype) in fields.items()} for _ in range(2)]
    iterator.loader.load(indices, 0, arrays[0], ThreadCursor())
    pickle.loads(pickle.dumps(iterator.loader)).load(indices, 0, arrays[1], ThreadCursor())
    assert all((arrays[0][name] == arrays[1][name]).all() for name in fields)


def test_a_record_that_a_batch_was_planned_with_is_not_overwritten_by_what_is_gathered_next(tmp_path: Path) -> None:
    records = [{"features": np.full((3, 2), number, np.uint8)} for number in range(4)]
    flipped = etl.Pipeline([lambda record: {"features": record["features"][::-1]}])  # a view of what was gathered
    with presave.write(tmp_path / "s", records) as store:
        loader = etl.PresavedIterator(store, flipped, 2).loader
        spec = loader.plan(np.array([1]), 0, ThreadCursor())
        assert list(spec.finished) == [1]
        arrays = {"features": np.zeros((1, 3, 2), np.uint8)}
        loader.load(np.array([2]), 0, arrays, ThreadCursor())
        loader.load(np.array([1]), 0, arrays, ThreadCursor(), spec.finished)
        assert (arrays["features"] == 1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multiple_of": 0}, "multiple_of must be a whole number of at least 1, not 0"),
        ({"length": 0}, "length must be a whole number of at least 1, not 0"),
        ({"length": 8, "multiple_of": 4}, "length=8 and multiple_of=4: give one of them"),
        ({"fields": "label"}, r"fields is a collection of names, such as \['label'\]"),
        ({"fields": ["lable"]}, "fields has 'lable'; only 'features' and 'label' can be padded"),
    ],
)
def test_padding_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Padding(**settings)


def record(*shape: int, **fields: Any) -> Record:
    return {"features": np.zeros(shape, np.int64), **fields}


@pytest.mark.parametrize(
    ("second", "padding", "message"),
    [
        (record(3, 2), None, r"shape \(3, 2\), the records before it \(2, 2\).*padding=etl.loading.Padding\(\)"),
        (record(9, 2), Padding(length=8), "has 9 steps and is padded to 8; raise that length"),
        (record(2, 3), Padding(), r"has shape \(2, 3\), the records before it \(2, 2\); padding fills up the first"),
        (record(2), Padding(), r"has shape \(2,\), the records before it"),
        (record(2, 2, features_mask=[1]), Padding(), "has 1 steps, the field that it masks has 2"),
        (record(2, 2, label=1), Padding(), "it has fields features, label, the records before it featur"),
    ],
)
def test_a_record_that_cannot_be_padded_is_named(second: Record, padding: Any, message: str) -> None:
    with pytest.raises(RecordError, match=f"record 1 of list: failed at stage 'collate': .*{message}"):
        list(etl.RawIterator([record(2, 2), second], NOTHING, 2, padding=padding))


def test_a_field_of_other_shapes_that_is_not_padded_says_what_would_pad_it() -> None:
    records = [record(steps, 2, label=np.ones(steps, np.int64)) for steps in (2, 3)]
    said = r"'label' has shape \(3,\), the records before it \(2,\); .* name the field in Padding\(fields="
    with pytest.raises(RecordError, match=f"record 1 of list: failed at stage 'collate': .*{said}"):
        list(etl.RawIterator(records, NOTHING, 2, padding=Padding()))
    (batch,) = etl.RawIterator(records, NOTHING, 2, padding=Padding(fields=["features", "label"]))
    assert batch.labels.tolist() == [[1, 1, 0], [1, 1, 1]]


def test_an_impossible_padding_value_is_an_error_at_the_first_record() -> None:
    with pytest.raises(RecordError, match=r"'features' is int64, which cannot hold the padding value 0\.5"):
        list(etl.RawIterator([record(2, 2)], NOTHING, 2, padding=Padding(0.5)))
    with pytest.raises(RecordError, match=r"'features' is float16, which cannot hold the padding value -1000000000\.0"):
        list(etl.RawIterator([{"features": np.zeros(2)}], NOTHING, 2, dtype="float16", padding=Padding(-1e9)))
    for dtype, value in (("float16", -np.inf), ("bfloat16", -1e9)):
        (batch,) = etl.RawIterator([{"features": [0.0]}], NOTHING, dtype=dtype, padding=Padding(value, length=2))
        assert batch.features[0, 1] == np.asarray(value, batch.features.dtype)
    shared = {"features": (np.zeros(2), np.zeros(3)), "features_mask": np.ones(2)}
    with pytest.raises(RecordError, match="it has one 'features_mask' for a tuple; give a tuple of masks"):
        list(etl.RawIterator([shared], NOTHING, 2, padding=Padding()))


@pytest.mark.parametrize("strategy", ["raw", "presaved early"])
def test_a_stage_that_changes_lengths_without_declaring_it_is_detected(tmp_path: Path, strategy: str) -> None:
    source, pipeline = Sequences(sequences()), etl.Pipeline([every_other_step_unsaid])
    with pytest.raises(RecordError, match=r"steps and the .* say \d+; a stage .* changes_length = True"):
        list(iterate(strategy, tmp_path, source, pipeline, padding=Padding()))


@pytest.mark.parametrize("lengths", [[1, 2], np.ones((40, 1), int), np.ones(40)])
def test_lengths_that_are_not_one_for_each_record_are_refused(lengths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Sequences(sequences())
    monkeypatch.setattr(Sequences, "lengths", lengths)
    with pytest.raises(ValueError, match="they must be integers, one for each of its 40 records"):
        etl.RawIterator(source, NOTHING, padding=Padding())
