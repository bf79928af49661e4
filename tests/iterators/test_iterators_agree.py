"""Every strategy gives the same batches: equal seed and epoch, equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.iterators import BatchIterator
from etl.stages import Cast
from etl.stages.dtypes import DTYPES
from tests.every_strategy import bits

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
) -> BatchIterator:
    kind = strategy.removeprefix("async ")
    iterator: BatchIterator
    if kind == "raw":
        source = etl.ImageFolder(photographs)
        iterator = etl.RawIterator(source, PIPELINE, 6, shuffle=True, seed=5, dtype=dtype, drop_last=drop_last)
    else:
        rest = PIPELINE.after("resize")
        iterator = etl.PresavedIterator(stores[kind], rest, 6, shuffle=True, seed=5, dtype=dtype, drop_last=drop_last)
    return etl.AsyncIterator(iterator) if strategy.startswith("async") else iterator


def epochs(iterator: BatchIterator) -> Iterator[etl.Batch]:
    """Two epochs."""
    yield from iterator
    yield from iterator


@pytest.mark.parametrize(("dtype", "drop_last"), [("float32", False), ("bfloat16", True)])
def test_every_strategy_gives_the_same_bits(
    photographs: Path, stores: dict[str, presave.Store], dtype: str, drop_last: bool
) -> None:
    sizes = [6] * 6 if drop_last else [6] * 6 + [4]
    expected = bits(epochs(make_iterator("raw", photographs, stores, dtype, drop_last)))
    features, labels = ((size, 3, 16, 16) for size in sizes), ((size,) for size in sizes)
    assert [each[:2] for batch in expected[: len(sizes)] for each in batch] == [
        each
        for shapes in zip(features, labels, strict=True)
        for each in zip(shapes, (DTYPES[dtype], np.int64), strict=True)
    ]
    assert expected[: len(sizes)] != expected[len(sizes) :]  # another epoch, another order
    for strategy in STRATEGIES[1:]:
        iterator = make_iterator(strategy, photographs, stores, dtype, drop_last)
        assert (len(iterator), iterator.dtype) == (len(sizes), dtype)
        assert bits(epochs(iterator)) == expected, strategy


def test_features_belong_to_their_labels(photographs: Path, stores: dict[str, presave.Store]) -> None:
    source = etl.ImageFolder(photographs)
    by_label: dict[int, set[bytes]] = {}
    for number in range(len(source)):
        by_label.setdefault(source.labels[number], set()).add(PIPELINE(source[number])["features"].tobytes())
    for batch in make_iterator("raw", photographs, stores, "float32"):
        for features, label in zip(*batch, strict=True):
            by_label[int(label)].remove(features.tobytes())
    assert not any(by_label.values())  # each once


def test_features_that_are_float64_agree_in_every_dtype(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    records = [{"features": random.standard_normal(9), "label": random.standard_normal()} for _ in range(20)]
    with presave.write(tmp_path / "store", records) as store:
        for dtype in DTYPES:
            raw = etl.RawIterator(records, etl.Pipeline([]), 8, shuffle=True, dtype=dtype)
            saved = etl.PresavedIterator(store, etl.Pipeline([]), 8, shuffle=True, dtype=dtype)
            assert bits(saved) == bits(raw)
            (first, *_) = raw
            assert first.features.dtype == first.labels.dtype == DTYPES[dtype]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", ">i4"])
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


def test_batches_that_were_handed_out_are_not_written_again(
    photographs: Path, stores: dict[str, presave.Store]
) -> None:
    for strategy in ("raw", "async npy"):
        batches, copies = [], []
        for batch in make_iterator(strategy, photographs, stores, "float32"):
            batches.append(batch)
            copies.append(batch.features.copy())
        for batch, copy in zip(batches, copies, strict=True):
            np.testing.assert_array_equal(batch.features, copy, err_msg=strategy)


# For each split what is stored, and what is left to do.
SPLITS = {
    "read": (etl.Pipeline([]), PIPELINE),
    **{stage: (PIPELINE.until(stage), PIPELINE.after(stage)) for stage in PIPELINE.names},
}


@pytest.mark.parametrize(
    ("stage", "format"), [*((stage, "npy") for stage in SPLITS), *(("decode", name) for name in presave.formats()[1:])]
)
def test_a_store_split_after_any_stage_gives_the_batches_of_raw(
    photographs: Path, tmp_path: Path, stage: str, format: str
) -> None:
    source = etl.ImageFolder(photographs)
    stored, rest = SPLITS[stage]
    with presave.write(tmp_path / "s", etl.records(source, stored), format=format, shard_nbytes=1 << 20) as store:
        assert store.fields["features"].is_ragged == (stage in ("read", "decode"))
        raw = etl.RawIterator(source, PIPELINE, 7, shuffle=True)
        assert bits(etl.PresavedIterator(store, rest, 7, shuffle=True)) == bits(raw)


def test_float16_takes_half_the_room_of_float32_and_gives_what_casting_gives(photographs: Path, tmp_path: Path) -> None:
    source = etl.ImageFolder(photographs)
    halved = etl.Pipeline([*PIPELINE.stages, Cast("float16")])
    with presave.write(tmp_path / "half", etl.records(source, halved)) as half:
        assert half.nbytes < 0.51 * 40 * 3 * 16 * 16 * 4
        given = etl.PresavedIterator(half, halved.after("cast"), 8, dtype="float16")
        assert bits(given) == bits(etl.RawIterator(source, PIPELINE, 8, dtype="float16"))


def test_a_cast_to_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'int8'; known: float16"):
        Cast("int8")
