"""Records of several inputs: the same tuples from every strategy, and into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import etl
import presave

NOTHING = etl.Pipeline([])
CLASSES = 3


def doubled(record: etl.Record) -> etl.Record:
    """A stage of several inputs."""
    first, second = record["features"]
    return {**record, "features": (first * 2, second)}


def make_records(count: int = 30) -> list[etl.Record]:
    """An input of floats, one of integers; the label is the class that both hold."""
    random = np.random.default_rng(0)
    records = []
    for number in range(count):
        first = random.standard_normal(4) * 0.1
        first[number % CLASSES] += 1
        second = np.array([number % CLASSES, number], np.int16)
        records.append({"features": (first, second), "label": number % CLASSES})
    return records


def iterate(strategy: str, folder: Path, records: list[etl.Record], pipeline: etl.Pipeline, **settings: Any) -> Any:
    """An iterator of that strategy; "presaved" is cut after the last stage, "presaved early" before the first."""
    kind = strategy.removeprefix("async ")
    if kind == "raw":
        iterator: Any = etl.RawIterator(records, pipeline, 7, shuffle=True, seed=2, **settings)
    else:
        before, after = (NOTHING, pipeline) if kind == "presaved early" else (pipeline, NOTHING)
        store = presave.write(folder / strategy, etl.records(records, before), shard_nbytes=600)
        iterator = etl.PresavedIterator(store, after, 7, shuffle=True, seed=2, **settings)
    return etl.AsyncIterator(iterator, threads=2) if strategy.startswith("async") else iterator


STRATEGIES = ("raw", "presaved", "presaved early", "async raw", "async presaved", "async presaved early")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_strategy_gives_the_same_tuples(tmp_path: Path, dtype: str) -> None:
    batches = {
        strategy: list(iterate(strategy, tmp_path, make_records(), etl.Pipeline([doubled]), dtype=dtype))
        for strategy in STRATEGIES
    }
    for strategy in STRATEGIES:
        for expected, batch in zip(batches["raw"], batches[strategy], strict=True):
            assert isinstance(batch.features, tuple), strategy
            assert [array.dtype for array in batch.features] == [etl.stages.dtypes.DTYPES[dtype], np.int16]
            for one, other in zip(expected.arrays(), batch.arrays(), strict=True):
                assert (one.shape, one.tobytes()) == (other.shape, other.tobytes()), strategy
    first = batches["raw"][0]
    records = make_records()
    for row, number in enumerate(first.features[1][:, 1].tolist()):
        wanted = (records[number]["features"][0] * 2).astype(etl.stages.dtypes.DTYPES[dtype])
        assert first.features[0][row].tolist() == wanted.tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_labels_and_masks_may_be_tuples_and_a_tuple_of_one_stays_a_tuple(tmp_path: Path, strategy: str) -> None:
    records: list[etl.Record] = [
        {
            "features": (np.full((3, 2), number),),
            "label": (number, np.full(2, number)),
            "labels_mask": (None, np.ones(2)),
        }
        for number in range(10)
    ]
    kept = etl.Pipeline([lambda record: dict(record)])
    for batch in iterate(strategy, tmp_path, records, kept):
        (features,) = batch.features
        numbers, pairs = batch.labels
        assert features[:, 0, 0].tolist() == numbers.tolist() == pairs[:, 0].tolist()
        assert batch.features_mask is None
        assert batch.labels_mask[0] is None
        assert batch.labels_mask[1].tolist() == [[1, 1]] * len(batch)


def test_a_store_keeps_a_field_for_each_input(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", etl.records(make_records(), NOTHING)) as store:
        assert list(store.fields) == ["features.0", "features.1", "label"]


def test_more_than_ten_inputs_keep_their_order(tmp_path: Path) -> None:
    records: list[etl.Record] = [{"features": tuple(np.full(1, place) for place in range(12))}] * 3
    for strategy in ("raw", "presaved"):
        (batch,) = iterate(strategy, tmp_path, records, NOTHING)
        assert [int(array[0, 0]) for array in batch.features] == list(range(12))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ((np.zeros(2), np.zeros(2), np.zeros(2)), "its 'features' is a tuple of 3, but a tuple of 2 in the records be"),
        ((np.zeros(2),), "its 'features' is a tuple of 1, but a tuple of 2 in the records before it; give every"),
        (np.zeros(2), "its 'features' is no tuple, but a tuple of 2 in the records before it"),
        ((), "'features' is an empty tuple"),
        ((np.zeros(2), (np.zeros(2),)), "'features' is a tuple in a tuple"),
        ((np.zeros(2), np.zeros(3)), r"field 'features.1' has shape \(3,\), the records before it \(2,\)"),
    ],
)
@pytest.mark.parametrize("padding", [None, etl.Padding(fields=["label"])])
def test_a_record_with_other_inputs_than_the_first_is_named(
    features: Any, message: str, padding: etl.Padding | None
) -> None:
    records = [{"features": (np.zeros(2), np.zeros(2)), "label": 0}, {"features": features, "label": 0}]
    with pytest.raises(etl.RecordError, match=f"record 1 of list: failed at stage 'collate': .*{message}"):
        list(etl.RawIterator(records, NOTHING, 2, padding=padding))


def test_presaving_refuses_a_record_with_other_inputs(tmp_path: Path) -> None:
    records = [{"features": (np.zeros(2), np.zeros(2))}, {"features": (np.zeros(2),)}]
    with pytest.raises(
        presave.StoreError, match=r"record 1 has fields \['features.0'\]; the first has \['features.0',"
    ):
        presave.write(tmp_path / "s", etl.records(records, NOTHING))
    with pytest.raises(etl.RecordError, match="record 0 of list: failed at stage 'collate': 'features' is an empty"):
        presave.write(tmp_path / "t", etl.records([{"features": ()}], NOTHING))


class TwoInputs(nn.Module):
    """Takes floats and integers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, CLASSES), nn.Embedding(CLASSES, CLASSES)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.first(first) + self.second(second[:, 0].long())
        return logits


def test_a_model_of_two_inputs_trains_alike_through_every_strategy(tmp_path: Path) -> None:
    scores = {}
    for strategy in STRATEGIES:
        iterator = iterate(strategy, tmp_path, make_records(), etl.Pipeline([doubled]))
        scores[strategy] = etl.fit(TwoInputs(), iterator, backend="cpu", learning_rate=0.5, epochs=5).scores
    assert scores["raw"][-1] < 0.3 * scores["raw"][0]
    assert all(each == scores["raw"] for each in scores.values())
