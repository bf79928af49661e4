"""A batch unpacks into features and labels, counts its records and bytes, and is made of any loader's form."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import etl
from etl.loading.batch import as_batch

ONE, TWO = np.zeros((5, 3), np.float32), np.zeros((5, 2), np.float32)
LABELS, MASK = np.zeros(5, np.int64), np.ones((5, 4), np.uint8)


def test_a_batch_unpacks_as_features_and_labels() -> None:
    features, labels = etl.Batch(ONE, LABELS, MASK)
    assert features is ONE
    assert labels is LABELS


def test_several_inputs_count_as_one_batch() -> None:
    batch = etl.Batch((ONE, TWO), LABELS, (MASK, MASK))
    assert len(batch) == len(etl.Batch(ONE, LABELS)) == 5
    assert [id(array) for array in batch.arrays()] == [id(array) for array in (ONE, TWO, LABELS, MASK, MASK)]


def test_the_mark_of_repeated_records_is_the_last_of_its_arrays_and_survives_pickling() -> None:
    repeated = np.array([False] * 4 + [True])
    batch = etl.Batch(ONE, LABELS, MASK, repeated=repeated)
    assert [id(array) for array in batch.arrays()] == [id(array) for array in (ONE, LABELS, MASK, repeated)]
    features, labels = batch
    assert (features is ONE, labels is LABELS) == (True, True)
    assert pickle.loads(pickle.dumps(batch)).repeated.tolist() == repeated.tolist()
    assert etl.Batch(ONE, LABELS).repeated is None


def test_nbytes_counts_every_array_and_no_missing_one() -> None:
    assert etl.Batch((ONE, TWO), LABELS, MASK).nbytes == 5 * (3 * 4 + 2 * 4 + 8 + 4)
    assert etl.Batch(ONE, None).nbytes == 60


class Foreign:
    """An array of another library: it has a shape and `__array__`, and is neither numpy's nor torch's."""

    shape = (5, 3)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return ONE


PAIRS: list[Any] = [
    (ONE, LABELS),
    [ONE, LABELS],
    {"image": ONE, "label": LABELS},
    {"label": LABELS, "image": ONE},
    {"X": ONE, "y": LABELS},
    {"target": LABELS, "spectrum": ONE},
    {"inputs": ONE, "rating": LABELS},
]


@pytest.mark.parametrize("item", PAIRS)
def test_pairs_and_mappings_are_batches_of_the_same_arrays(item: Any) -> None:
    batch = as_batch(item)
    assert batch.features is ONE
    assert batch.labels is LABELS


def test_a_batch_stays_the_same_object() -> None:
    batch = etl.Batch(ONE, LABELS, MASK)
    assert as_batch(batch) is batch


def test_features_and_labels_may_be_several_arrays() -> None:
    batch = as_batch(([ONE, TWO], (LABELS,)))
    assert [id(array) for array in batch.features] == [id(ONE), id(TWO)]
    assert isinstance(batch.features, tuple)
    assert batch.labels[0] is LABELS
    assert len(batch) == 5


def test_labels_may_be_none_and_arrays_of_any_library() -> None:
    foreign = Foreign()
    batch = as_batch((foreign, None))
    assert batch.features is foreign
    assert batch.labels is None


def test_entries_of_a_mapping_that_are_neither_features_nor_labels_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="the entries 'path', 'number' of batches are left out"):
        batch = as_batch({"image": ONE, "path": ["a"], "label": LABELS, "number": LABELS})
    assert (batch.features is ONE, batch.labels is LABELS) == (True, True)


@pytest.mark.parametrize(
    ("item", "description"),
    [
        (ONE, "not a ndarray"),
        ((ONE,), "not a tuple of 1"),
        ([ONE, LABELS, MASK], "not a list of 3"),
        (None, "not a NoneType"),
        ("ab", "not a str"),
        ({"a": ONE, "b": LABELS}, "not a dict with 'a', 'b'"),
        ({"image": ONE, "x": TWO, "label": LABELS}, "not a dict with 'image', 'x', 'label'"),
        ({"image": ONE, "data": TWO}, "not a dict with 'image', 'data'"),
        ((ONE, 3), "the labels of a batch are a int; needed are arrays"),
        ((ONE, [0, 1]), "the labels of a batch are a list of 2; needed are arrays"),
        ((ONE, np.int64(3)), "the labels of a batch are a int64; needed are arrays or tensors whose first axis counts"),
        (({"ids": ONE}, LABELS), "the features of a batch are a dict with 'ids'; needed are arrays"),
        ((None, LABELS), "the features of a batch are a NoneType; needed are arrays"),
        (((), LABELS), "the features of a batch are a tuple of 0; needed are arrays"),
    ],
)
def test_a_batch_of_another_form_is_refused_by_a_sentence_that_says_what_it_is(item: Any, description: str) -> None:
    with pytest.raises(ValueError, match=description):
        as_batch(item)
