"""Every page of a batch is touched, and digests depend on everything in it."""

from __future__ import annotations

import mmap

import ml_dtypes
import numpy as np
import pytest

import etl
from etl.measuring.arrays import BatchDigest, digest_of, page_count, record_digests, touch

FEATURES = np.arange(24, dtype=np.float32).reshape(4, 6)
LABELS = np.arange(4)


def batch(features: np.ndarray = FEATURES, labels: np.ndarray = LABELS) -> etl.Batch:
    return etl.Batch(features, labels)


def changed() -> np.ndarray:
    features = FEATURES.copy()
    features[-1, -1] = np.nextafter(features[-1, -1], np.float32(0))
    return features


@pytest.mark.parametrize(
    "other",
    [
        batch(changed()),
        batch(FEATURES.reshape(4, 2, 3)),
        batch(FEATURES.view(np.int32)),
        batch(FEATURES[::-1]),
        batch(labels=LABELS[::-1]),
        batch(labels=LABELS.astype(np.int32)),
    ],
    ids=["one bit", "shape", "dtype", "order", "labels", "dtype of labels"],
)
def test_a_digest_changes_with_every_bit_shape_dtype_and_order(other: etl.Batch) -> None:
    assert digest_of(other) != digest_of(batch())


def test_equal_content_has_equal_digests_in_every_memory_layout() -> None:
    assert digest_of(batch(np.asfortranarray(FEATURES))) == digest_of(batch(FEATURES.copy())) == digest_of(batch())


def test_a_digest_of_several_batches_depends_on_their_order() -> None:
    first, second = batch(), batch(changed())
    digests = set()
    for order in ((first, second), (second, first), (first, first)):
        digest = BatchDigest()
        for each in order:
            digest.update(each)
        digests.add(digest.hexdigest())
    assert len(digests) == 3


def test_every_array_has_its_pages() -> None:
    pages = etl.Batch(np.ones(4097, np.uint8), np.ones(1, np.uint8))
    assert page_count(pages) == 3
    assert touch(pages) == 5  # two and one of them, and the last byte of each array


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64"])
def test_arrays_without_elements_have_no_pages(dtype: str) -> None:
    empty = etl.Batch(np.zeros((3, 0), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), None)
    assert touch(empty) == page_count(empty) == 0


@pytest.mark.parametrize("start", [0, 1, 100, mmap.PAGESIZE - 1])
@pytest.mark.parametrize("nbytes", [1, 200, mmap.PAGESIZE, mmap.PAGESIZE + 1, 3 * mmap.PAGESIZE - 7])
def test_touching_reads_each_page_of_an_array_that_begins_anywhere_in_a_page(start: int, nbytes: int) -> None:
    memory = np.frombuffer(mmap.mmap(-1, 5 * mmap.PAGESIZE), np.uint8)
    array = memory[start : start + nbytes]
    pages = memory.reshape(5, mmap.PAGESIZE)
    for page in range((start + nbytes - 1) // mmap.PAGESIZE + 1):
        pages[:] = 0
        pages[page] = 1
        assert touch(etl.Batch(array, None)) > 0, f"page {page} was not read"


def test_the_digest_of_a_record_is_the_same_wherever_it_is() -> None:
    every = record_digests(batch())
    assert len(set(every)) == len(every) == len(FEATURES)
    order = [2, 0, 3, 1]
    assert record_digests(batch(FEATURES[order], LABELS[order])) == [every[number] for number in order]
    assert record_digests(batch(FEATURES[2:3], LABELS[2:3])) == [every[2]]


def test_the_digest_of_a_record_changes_with_its_own_bits_alone() -> None:
    assert record_digests(batch(changed()))[:-1] == record_digests(batch())[:-1]
    assert record_digests(batch(changed()))[-1] != record_digests(batch())[-1]
    assert not set(record_digests(batch(FEATURES.view(np.int32)))) & set(record_digests(batch()))
