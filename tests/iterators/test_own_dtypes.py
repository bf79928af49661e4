"""Iterators with dtype=None: every array keeps the dtype of its records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import etl
import presave
from etl.loading import Padding
from etl.sources import RecordError

NOTHING = etl.Pipeline([])
DTYPES = ("float16", "float32", "float64", "int32", "uint8")


class Mixed:
    """Records whose features have one array of each dtype, and a label of float64."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> presave.Record:
        return {"features": tuple(np.full(2, index, dtype) for dtype in DTYPES), "label": index + 1e-12}


def check(batches: Iterator[etl.Batch]) -> None:
    found = list(batches)
    labels = np.concatenate([batch.labels for batch in found])
    np.testing.assert_array_equal(np.sort(labels), np.arange(13) + 1e-12)  # float32 would round them
    for batch in found:
        assert [array.dtype for array in batch.features] == [*DTYPES]
        for array in batch.features:
            np.testing.assert_array_equal(array, np.repeat(np.round(batch.labels)[:, None], 2, 1))


@pytest.mark.parametrize(
    ("reads", "ahead"),
    [
        ("source", {}),
        ("store", {}),
        ("store", {"threads": 2}),
        ("source", {"workers": "process", "processes": 1}),
    ],
)
def test_every_iterator_keeps_the_dtypes(reads: str, ahead: dict[str, Any], tmp_path: Path) -> None:
    order: dict[str, Any] = {"batch_size": 4, "shuffle": True, "dtype": None}
    with presave.write(tmp_path / "store", etl.records(Mixed(), NOTHING)) as store:
        plain: Any = (
            etl.RawIterator(Mixed(), NOTHING, **order)
            if reads == "source"
            else etl.PresavedIterator(store, NOTHING, **order)
        )
        with etl.AsyncIterator(plain, **ahead) if ahead else plain as iterator:
            assert iterator.dtype is None
            check(iterator)


def test_bfloat16_and_foreign_byte_order_are_kept_and_made_native() -> None:
    for array, dtype in (
        (np.ones(2, ml_dtypes.bfloat16), np.dtype(ml_dtypes.bfloat16)),
        (np.ones(2, ">f8"), np.dtype("=f8")),
    ):
        (batch,) = etl.RawIterator([{"features": array}], NOTHING, 1, dtype=None)
        assert batch.features.dtype == dtype
        assert batch.features.dtype.isnative


@pytest.mark.parametrize("padding", [None, Padding()])
def test_digits_are_never_lost_unseen(padding: Padding | None) -> None:
    source = [{"features": np.ones(2, np.float32)}, {"features": np.ones(2, np.float64)}]
    list(etl.RawIterator(source, NOTHING, 2, padding=padding))  # converted, as asked for
    with pytest.raises(RecordError, match=r"record 1 of list: .* 'features' is float64, .* before it float32"):
        list(etl.RawIterator(source, NOTHING, 2, dtype=None, padding=padding))
    (batch,) = etl.RawIterator(source[::-1], NOTHING, 2, dtype=None, padding=padding)
    assert batch.features.dtype == np.float64


def test_masks_are_float32() -> None:
    source = [{"features": np.ones((steps, 1), np.float64)} for steps in (1, 3)]
    (batch,) = etl.RawIterator(source, NOTHING, 2, dtype=None, padding=Padding())
    assert batch.features.dtype == np.float64
    assert batch.features_mask.dtype == np.float32
    assert batch.features_mask.tolist() == [[1, 0, 0], [1, 1, 1]]


def test_the_gather_normalises_as_the_stages_do(photographs: Path, tmp_path: Path) -> None:
    source, pipeline = etl.ImageFolder(photographs), etl.image_pipeline(8)
    with presave.write(tmp_path / "store", etl.records(source, pipeline.until("resize"))) as store:
        (own,) = etl.PresavedIterator(store, pipeline.after("resize"), 40, dtype=None)
        (expected,) = etl.PresavedIterator(store, pipeline.after("resize"), 40, dtype="float32")
        (raw,) = etl.RawIterator(source, pipeline, 40, dtype=None)
    assert own.features.dtype == raw.features.dtype == np.float32
    np.testing.assert_array_equal(own.features, expected.features)
    np.testing.assert_array_equal(raw.features, expected.features)


def test_a_device_iterator_keeps_what_its_stages_give() -> None:
    from etl.stages import Cast

    source = [{"features": np.ones(2), "label": 1}] * 3
    with closing(etl.RawIterator(source, NOTHING, 3, dtype=None)) as raw:
        (batch,) = etl.DeviceIterator(raw, "cpu", etl.Pipeline([Cast("float16")]))
    assert batch.features.dtype == torch.float16
