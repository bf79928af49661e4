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


def is_of(batch: etl.Batch, *arrays: Any) -> bool:
    """True if these are the arrays of `batch`, the very objects."""
    return [id(array) for array in batch.arrays()] == [id(array) for array in arrays]


def test_a_batch_unpacks_as_features_and_labels_and_survives_pickling() -> None:
    repeated = np.array([False] * 4 + [True])
    batch = etl.Batch(ONE, LABELS, MASK, repeated=repeated)
    features, labels = batch
    assert (features is ONE, labels is LABELS) == (True, True)
    assert is_of(batch, ONE, LABELS, MASK, repeated)
    assert pickle.loads(pickle.dumps(batch)).repeated.tolist() == repeated.tolist()


def test_several_inputs_count_as_one_batch_and_nbytes_counts_every_array() -> None:
    batch = etl.Batch((ONE, TWO), LABELS, (MASK, None))
    assert batch.records == etl.Batch(ONE, LABELS).records == 5
    assert is_of(batch, ONE, TWO, LABELS, MASK)
    assert batch.nbytes == 5 * (3 * 4 + 2 * 4 + 8 + 4)
    assert etl.Batch(ONE, None).nbytes == 60


class Foreign:
    """An array of another library: it has a shape and `__array__`, and is neither numpy's nor torch's."""

    shape = (5, 3)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return ONE


FOREIGN = Foreign()


@pytest.mark.parametrize(
    ("item", "arrays"),
    [
        ((ONE, LABELS), (ONE, LABELS)),
        ([ONE, LABELS], (ONE, LABELS)),
        ({"label": LABELS, "image": ONE}, (ONE, LABELS)),
        ({"X": ONE, "y": LABELS}, (ONE, LABELS)),
        ({"inputs": ONE, "rating": LABELS}, (ONE, LABELS)),
        (([ONE, TWO], (LABELS,)), (ONE, TWO, LABELS)),
        ((FOREIGN, None), (FOREIGN,)),
    ],
)
def test_pairs_and_mappings_are_batches_of_the_same_arrays(item: Any, arrays: tuple[Any, ...]) -> None:
    batch = as_batch(item)
    assert is_of(batch, *arrays)
    assert len(batch.features) == 2 if len(arrays) == 3 else batch.features is arrays[0]
    assert as_batch(batch) is batch


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
        ({"a": ONE, "b": LABELS}, "not a dict with 'a', 'b'"),
        ({"image": ONE, "x": TWO, "label": LABELS}, "not a dict with 'image', 'x', 'label'"),
        ((ONE, [0, 1]), "the labels of a batch are a list of 2; needed are arrays"),
        ((ONE, np.int64(3)), "the labels of a batch are a int64; needed are arrays or tensors whose first axis counts"),
        ((None, LABELS), "the features of a batch are a NoneType; needed are arrays"),
        (((), LABELS), "the features of a batch are a tuple of 0; needed are arrays"),
    ],
)
def test_a_batch_of_another_form_is_refused_by_a_sentence_that_says_what_it_is(item: Any, description: str) -> None:
    with pytest.raises(ValueError, match=description):
        as_batch(item)
