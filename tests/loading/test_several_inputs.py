"""Records of several inputs: the same tuples from every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl.loading import Padding
from etl.sources import Record, RecordError
from etl.stages.dtypes import DTYPES
from tests.every_strategy import NOTHING, STRATEGIES, bits, iterate


def doubled(record: Record) -> Record:
    """A stage of several inputs."""
    first, second = record["features"]
    return {**record, "features": (first * 2, second)}


# An input of floats, one of integers that begins with the number of the record.
RECORDS: list[Record] = [
    {"features": (first, np.array([number, 7], np.int16)), "label": number}
    for number, first in enumerate(np.random.default_rng(0).standard_normal((30, 4)))
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_strategy_gives_the_same_tuples(tmp_path: Path, dtype: str) -> None:
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 2, "dtype": dtype}
    raw = list(iterate("raw", tmp_path, RECORDS, etl.Pipeline([doubled]), **options))
    for strategy in STRATEGIES[1:]:
        assert bits(iterate(strategy, tmp_path, RECORDS, etl.Pipeline([doubled]), **options)) == bits(raw), strategy
    for batch in raw:
        floats, integers = batch.features
        assert (floats.dtype, integers.dtype) == (DTYPES[dtype], np.int16)
        wanted = [(RECORDS[number]["features"][0] * 2).astype(DTYPES[dtype]) for number in integers[:, 0].tolist()]
        np.testing.assert_array_equal(floats, wanted)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_labels_and_masks_may_be_tuples_and_a_tuple_of_one_stays_a_tuple(tmp_path: Path, strategy: str) -> None:
    records: list[Record] = [
        {
            "features": (np.full((3, 2), number),),
            "label": (number, np.full(2, number)),
            "labels_mask": (None, np.ones(2)),
        }
        for number in range(10)
    ]
    for batch in iterate(
        strategy, tmp_path, records, etl.Pipeline([lambda record: dict(record)]), batch_size=7, shuffle=True
    ):
        (features,) = batch.features
        numbers, pairs = batch.labels
        assert features[:, 0, 0].tolist() == numbers.tolist() == pairs[:, 0].tolist()
        assert batch.features_mask is None
        assert batch.labels_mask[0] is None
        assert batch.labels_mask[1].tolist() == [[1, 1]] * batch.records


def test_more_than_ten_inputs_keep_their_order_and_a_store_keeps_a_field_for_each(tmp_path: Path) -> None:
    records: list[Record] = [{"features": tuple(np.full(1, place) for place in range(12))}] * 3
    with presave.write(tmp_path / "s", etl.records(records, NOTHING)) as store:
        assert sorted(store.fields) == sorted(f"features.{place}" for place in range(12))
        for iterator in (etl.RawIterator(records, NOTHING), etl.PresavedIterator(store, NOTHING)):
            (batch,) = iterator
            assert [int(array[0, 0]) for array in batch.features] == list(range(12))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ((np.zeros(2), np.zeros(2), np.zeros(2)), "its 'features' is a tuple of 3, but a tuple of 2 in the records be"),
        (np.zeros(2), "its 'features' is no tuple, but a tuple of 2 in the records before it"),
        ((), "'features' is an empty tuple"),
        ((np.zeros(2), (np.zeros(2),)), "'features' is a tuple in a tuple"),
        ((np.zeros(2), np.zeros(3)), r"field 'features.1' has shape \(3,\), the records before it \(2,\)"),
    ],
)
@pytest.mark.parametrize("padding", [None, Padding(fields=["label"])])
def test_a_record_with_other_inputs_than_the_first_is_named(
    features: Any, message: str, padding: Padding | None
) -> None:
    records = [{"features": (np.zeros(2), np.zeros(2)), "label": 0}, {"features": features, "label": 0}]
    with pytest.raises(RecordError, match=f"record 1 of list: failed at stage 'collate': .*{message}"):
        list(etl.RawIterator(records, NOTHING, 2, padding=padding))


def test_presaving_refuses_a_record_with_other_inputs(tmp_path: Path) -> None:
    records = [{"features": (np.zeros(2), np.zeros(2))}, {"features": (np.zeros(2),)}]
    with pytest.raises(
        presave.StoreError, match=r"record 1 has fields \['features.0'\]; the first has \['features.0',"
    ):
        presave.write(tmp_path / "s", etl.records(records, NOTHING))
    with pytest.raises(RecordError, match="record 0 of list: failed at stage 'collate': 'features' is an empty"):
        presave.write(tmp_path / "t", etl.records([{"features": ()}], NOTHING))
