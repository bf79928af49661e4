"""Every strategy gives the same batches: equal seed and epoch, equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.stages.dtypes import DTYPES

STRATEGIES = ("raw", "npy", "hdf5", "async raw", "async npy", "async hdf5")
PIPELINE = etl.image_pipeline(16)


@pytest.fixture(scope="module")
def stores(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, presave.Store]]:
    """Stores of several shards, cut where pixels are still uint8."""
    folder = tmp_path_factory.mktemp("stores")
    records = etl.records(etl.ImageFolder(photographs), PIPELINE.until("resize"))
    opened = {
        name: presave.write(folder / name, records, format=name, shard_nbytes=16 * 16 * 3 * 7)
        for name in ("npy", "hdf5")
    }
    assert len(opened["npy"].manifest.shards) > 3
    yield opened
    for store in opened.values():
        store.close()


def make_iterator(
    strategy: str, photographs: Path, stores: dict[str, presave.Store], dtype: str, drop_last: bool = False
) -> etl.BatchIterator:
    kind = strategy.removeprefix("async ")
    iterator: etl.BatchIterator
    if kind == "raw":
        source = etl.ImageFolder(photographs)
        iterator = etl.RawIterator(source, PIPELINE, 6, shuffle=True, seed=5, dtype=dtype, drop_last=drop_last)
    else:
        rest = PIPELINE.after("resize")
        iterator = etl.PresavedIterator(stores[kind], rest, 6, shuffle=True, seed=5, dtype=dtype, drop_last=drop_last)
    return etl.AsyncIterator(iterator) if strategy.startswith("async") else iterator


def bytes_of(iterator: etl.BatchIterator, epochs: int) -> list[tuple[bytes, bytes, tuple[int, ...]]]:
    return [
        (batch.features.tobytes(), batch.labels.tobytes(), batch.features.shape)
        for _ in range(epochs)
        for batch in iterator
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_strategy_gives_the_same_bits(photographs: Path, stores: dict[str, presave.Store], dtype: str) -> None:
    expected = bytes_of(make_iterator("raw", photographs, stores, dtype), 2)
    assert expected[:7] != expected[7:]  # another epoch, another order
    for strategy in STRATEGIES[1:]:
        assert bytes_of(make_iterator(strategy, photographs, stores, dtype), 2) == expected, strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_have_the_asked_shape_and_dtype(
    photographs: Path, stores: dict[str, presave.Store], strategy: str, drop_last: bool
) -> None:
    iterator = make_iterator(strategy, photographs, stores, "float16", drop_last)
    batches = list(iterator)
    sizes = [6] * 6 if drop_last else [6] * 6 + [4]
    assert [batch.features.shape for batch in batches] == [(size, 3, 16, 16) for size in sizes]
    assert len(iterator) == len(sizes)
    for batch in batches:
        assert batch.features.dtype == iterator.dtype == "float16"
        assert batch.labels.dtype == np.int64
        assert batch.labels.shape == (len(batch),)
        assert (batch.features_mask, batch.labels_mask) == (None, None)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_features_belong_to_their_labels(photographs: Path, stores: dict[str, presave.Store], strategy: str) -> None:
    source = etl.ImageFolder(photographs)
    by_label: dict[int, set[bytes]] = {}
    for number in range(len(source)):
        by_label.setdefault(source.labels[number], set()).add(PIPELINE(source[number])["features"].tobytes())
    for batch in make_iterator(strategy, photographs, stores, "float32"):
        for features, label in zip(*batch, strict=True):
            by_label[int(label)].remove(features.tobytes())
    assert not any(by_label.values())  # each once


@pytest.mark.parametrize("format", ["npy", "hdf5"])
@pytest.mark.parametrize("stage", ["resize", "channels_first", "normalise"])
def test_batches_do_not_depend_on_where_the_pipeline_was_split(
    digits: Path, tmp_path: Path, format: str, stage: str
) -> None:
    source = etl.Idx.from_folder(digits, "test")
    enlarge = etl.stages.Resize(32, 30)
    pipeline = etl.Pipeline([enlarge, etl.stages.ChannelsFirst(), etl.stages.Normalise((0.3,), (0.7,))])
    raw = etl.RawIterator(source, pipeline, 50, shuffle=True)
    with presave.write(tmp_path / "store", etl.records(source, pipeline.until(stage)), format=format) as store:
        saved = etl.PresavedIterator(store, pipeline.after(stage), 50, shuffle=True)
        assert bytes_of(saved, 1) == bytes_of(raw, 1)


def test_features_that_are_float64_agree_in_every_dtype(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    records = [{"features": random.standard_normal(9), "label": random.standard_normal()} for _ in range(20)]
    with presave.write(tmp_path / "store", records) as store:
        for dtype in DTYPES:
            raw = etl.RawIterator(records, etl.Pipeline([]), 8, shuffle=True, dtype=dtype)
            saved = etl.PresavedIterator(store, etl.Pipeline([]), 8, shuffle=True, dtype=dtype)
            assert bytes_of(saved, 1) == bytes_of(raw, 1)
            (first, *_) = raw
            assert first.features.dtype == first.labels.dtype == DTYPES[dtype]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "bool", ">i4", "float16"])
def test_other_features_keep_their_values_and_agree(tmp_path: Path, dtype: str) -> None:
    records = [{"features": (np.arange(6) + number).astype(dtype), "label": number} for number in range(10)]
    raw = etl.RawIterator(records, etl.Pipeline([]), 4)
    with presave.write(tmp_path / "store", records) as store:
        for of_raw, of_store in zip(raw, etl.PresavedIterator(store, etl.Pipeline([]), 4), strict=True):
            assert of_raw.features.dtype == of_store.features.dtype
            assert of_raw.features.tobytes() == of_store.features.tobytes()
    assert of_raw.features.tolist() == [record["features"].tolist() for record in records[8:]]


def test_masks_and_missing_labels_agree(tmp_path: Path) -> None:
    records = [
        {"features": np.full((3, 2), number), "features_mask": np.arange(3) < number % 4, "labels_mask": np.ones(3)}
        for number in range(5)
    ]
    raw = etl.RawIterator(records, etl.Pipeline([]), 5)
    with presave.write(tmp_path / "store", records) as store:
        for iterator in (raw, etl.PresavedIterator(store, etl.Pipeline([]), 5)):
            (batch,) = iterator
            assert batch.labels is None
            assert batch.features_mask.tolist() == [record["features_mask"].tolist() for record in records]
            assert batch.labels_mask.dtype == np.float32


def test_plain_lists_of_records_are_a_source() -> None:
    records = [{"features": [number, -number], "label": number % 3, "note": "kept out"} for number in range(7)]
    batches = list(etl.RawIterator(records, etl.Pipeline([]), batch_size=4))
    assert [batch.features.tolist() for batch in batches] == [
        [[0, 0], [1, -1], [2, -2], [3, -3]],
        [[4, -4], [5, -5], [6, -6]],
    ]
    assert [batch.labels.tolist() for batch in batches] == [[0, 1, 2, 0], [1, 2, 0]]


def test_batches_that_were_handed_out_are_not_written_again(
    photographs: Path, stores: dict[str, presave.Store]
) -> None:
    for strategy in STRATEGIES:
        batches, copies = [], []
        for batch in make_iterator(strategy, photographs, stores, "float32"):
            batches.append(batch)
            copies.append(batch.features.copy())
        for batch, copy in zip(batches, copies, strict=True):
            np.testing.assert_array_equal(batch.features, copy, err_msg=strategy)
