"""Signatures recognise a record in any structure, library and order of axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import etl
from etl.measuring.signatures import join_signatures, labels_of, signatures_of

IMAGES = np.random.default_rng(0).normal(size=(4, 3, 14, 21)).astype(np.float32)
LABELS = np.arange(4)
CELLS = IMAGES.reshape(4, 3, 7, 2, 7, 3).mean((3, 5)).reshape(4, 3, 49)
EXPECTED = np.concatenate([CELLS, IMAGES.std((2, 3))[..., np.newaxis]], axis=2).reshape(4, 150)


@pytest.mark.parametrize(
    "batch",
    [
        etl.Batch(IMAGES, LABELS),
        (torch.from_numpy(IMAGES).to(memory_format=torch.channels_last), torch.from_numpy(LABELS)),
        {"label": LABELS, "image": IMAGES.transpose(0, 2, 3, 1)},
        [{"image": image, "label": int(label)} for image, label in zip(IMAGES, LABELS, strict=True)],
        ([*IMAGES.transpose(0, 2, 3, 1)], [{"box": np.zeros((2, 4)), "label": torch.tensor(each)} for each in LABELS]),
    ],
    ids=["batch", "tensors", "channels last", "list of mappings", "lists"],
)
def test_images_have_the_means_of_cells_and_the_deviation_of_each_channel(batch: Any) -> None:
    np.testing.assert_allclose(signatures_of(batch), EXPECTED, atol=1e-5)
    assert signatures_of(batch).dtype == np.float32
    np.testing.assert_array_equal(labels_of(batch), LABELS)


def test_images_of_any_size_have_signatures_of_equal_length() -> None:
    small, odd = np.ones((3, 2, 2), np.uint8), np.arange(3 * 9 * 8, dtype=np.uint8).reshape(3, 9, 8)
    found = signatures_of(([small, odd], [0, 1]))
    assert found.shape == (2, 150)
    np.testing.assert_allclose(found[0], np.tile([1] * 49 + [0], 3))


def test_anything_else_has_the_means_of_its_parts_and_one_deviation() -> None:
    rows = np.arange(2 * 128, dtype=np.float64).reshape(2, 4, 32)
    found = signatures_of((rows,))
    np.testing.assert_allclose(found[:, :64], rows.reshape(2, 64, 2).mean(2))
    np.testing.assert_allclose(found[:, 64], rows.std((1, 2)), rtol=1e-6)
    assert signatures_of((rows[:, :1, :3],)).shape == (2, 65)
    assert signatures_of((rows[:, :, :0],)).shape == (2, 0)


def test_half_precision_that_numpy_does_not_know_and_complex_numbers_have_signatures() -> None:
    halves = torch.from_numpy(IMAGES).to(torch.bfloat16)
    np.testing.assert_allclose(signatures_of([halves]), EXPECTED, atol=0.01)
    found = signatures_of([np.full((2, 32), 1 + 2j)])
    np.testing.assert_allclose(found[:, :64], np.tile([1, 2], (2, 32)))
    assert signatures_of([np.full((2, 3, 8, 6), 1 + 2j)]).shape == (2, 65)  # no colours, but coils or slices


def test_numbers_that_are_not_finite_count_as_zero() -> None:
    rows = np.ones((1, 64), np.float32)
    rows[0, :3] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(signatures_of([rows])[0, :4], [0, 0, 0, 1])


def test_a_batch_without_numbers_has_empty_signatures() -> None:
    assert signatures_of([("a", None), ("b", None)]).shape == (2, 0)


@pytest.mark.parametrize(
    "batch",
    [(IMAGES,), (IMAGES, LABELS, LABELS), (IMAGES, LABELS.astype(np.float32)), (IMAGES, np.eye(4, dtype=np.int64))],
    ids=["no labels", "two", "floats", "one-hot"],
)
def test_there_are_no_labels_unless_exactly_one_field_has_an_integer_for_each_record(batch: Any) -> None:
    assert labels_of(batch) is None


def test_texts_in_an_array_are_no_numbers() -> None:
    texts = np.array(["good", "bad", "", "1.5"])
    assert signatures_of((texts, LABELS)).shape == (4, 65)  # of the labels
    assert signatures_of(texts).shape == (4, 0)
    np.testing.assert_array_equal(labels_of((texts, LABELS)), LABELS)


def test_labels_in_a_column_of_their_own_are_labels() -> None:
    np.testing.assert_array_equal(labels_of((IMAGES, LABELS[:, np.newaxis].astype(np.uint8))), LABELS)


def test_labels_of_every_integer_dtype_stay_different() -> None:
    large = np.array([0, 2**53 + 1, 2**63, 2**64 - 1], np.uint64)
    for batch in ((IMAGES, large), (IMAGES, torch.from_numpy(large)), (list(IMAGES), large.tolist())):
        np.testing.assert_array_equal(labels_of(batch), large.astype(np.int64))
    np.testing.assert_array_equal(labels_of((IMAGES, -LABELS)), -LABELS)


class OnDevice:
    """A number on a device, of a library that refuses to convert it implicitly, as CuPy does."""

    shape, dtype = (), np.dtype(np.int64)

    def __init__(self, number: int) -> None:
        self._number = number

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def get(self) -> np.ndarray:
        return np.array(self._number)


def test_labels_may_be_on_a_device() -> None:
    np.testing.assert_array_equal(labels_of((list(IMAGES), [OnDevice(each) for each in LABELS.tolist()])), LABELS)


def test_signatures_of_several_batches_are_joined_even_if_some_are_shorter() -> None:
    joined = join_signatures([np.ones((2, 3), np.float32), np.ones((1, 2), np.float32)])
    np.testing.assert_array_equal(joined, [[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    assert join_signatures([]).shape == (0, 0)
