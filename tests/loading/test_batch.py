"""A batch unpacks into features and labels, and counts its records and bytes."""

from __future__ import annotations

import pickle

import numpy as np

import etl

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
