"""SyntheticIterator: the same batch again and again."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

import etl
from etl.loading.sampler import Uneven
from etl.stages.dtypes import DTYPES


def test_every_batch_is_the_same_object_so_that_loading_costs_nothing() -> None:
    iterator = etl.SyntheticIterator((3, 4), classes=7, batches=5, batch_size=64)
    batches = [batch for _ in range(2) for batch in iterator]
    assert len(batches) == 2 * len(iterator) == 10
    assert all(batch is batches[0] for batch in batches)
    assert iterator.epoch == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_are_normal_and_labels_within_the_classes(dtype: str) -> None:
    (batch,) = etl.SyntheticIterator((50, 4), 7, batches=1, batch_size=100, dtype=dtype)
    assert batch.features.dtype == DTYPES[dtype]
    assert batch.features.shape == (100, 50, 4)
    values = batch.features.astype(np.float64)
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 1) < 0.05
    assert batch.labels.dtype == np.int64
    assert set(batch.labels.tolist()) == set(range(7))


def test_equal_seeds_give_equal_batches_and_different_seeds_different_ones() -> None:
    one, same, other = (
        next(iter(etl.SyntheticIterator((9,), 10, 1, seed=seed))).features.tobytes() for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_a_given_batch_is_repeated() -> None:
    batch = etl.Batch((np.zeros((4, 2)), np.ones((4, 3))), np.arange(4))
    iterator = etl.SyntheticIterator.repeating(batch, 3)
    assert [each is batch for each in iterator] == [True] * 3
    assert iterator.batch_size == 4


def test_it_resumes_like_other_iterators() -> None:
    iterator = etl.SyntheticIterator((3,), 2, batches=5)
    batches = iter(iterator)
    next(batches), next(batches)
    state = iterator.state_dict()
    fresh = etl.SyntheticIterator((3,), 2, batches=5)
    fresh.load_state_dict(state)
    assert len(list(fresh)) == 3


def test_every_rank_repeats_the_whole_batch() -> None:
    iterator = etl.SyntheticIterator((3,), 2, batches=5)
    (batch, *_) = iterator
    for uneven in get_args(Uneven):
        assert [(each is batch, each.repeated) for each in iterator.shard(1, 2, uneven)] == [(True, None)] * 5
