"""Records that differ from the first one, and the number of times the pipeline runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import pytest

import etl
from etl.loading import Padding
from etl.sources import Record, RecordError

NOTHING = etl.Pipeline([])
FIRST = {"features": np.zeros(3, np.uint8), "label": 0}


def load(records: Sequence[Any]) -> etl.Batch:
    (batch,) = etl.RawIterator(records, NOTHING, batch_size=len(records))
    return batch


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({**FIRST, "features": np.zeros(4, np.uint8)}, r"'features' has shape \(4,\), the records before it \(3,\)"),
        ({**FIRST, "features": np.zeros(1, np.uint8)}, r"'features' has shape \(1,\), the records before it \(3,\)"),
        ({**FIRST, "features": np.full(3, 0.5)}, "'features' is float64, the records before it uint8"),
        ({**FIRST, "features": np.full(3, 300)}, "'features' is int64, the records before it uint8"),
        ({**FIRST, "label": 0.5}, "'label' is float64, the records before it int64"),
        ({"features": np.zeros(3, np.uint8)}, "it has no field 'label', which the records before it have"),
        ({**FIRST, "features_mask": 1}, "it has fields features, label, features_mask, the records before it features"),
    ],
)
def test_a_record_unlike_the_first_is_refused_and_not_bent(second: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"record 1 of list: failed at stage 'collate': .*{message}"):
        load([FIRST, second])


def test_values_that_fit_without_loss_are_taken() -> None:
    batch = load(
        [{"features": 1.5, "label": 7}, {"features": 2, "label": np.uint8(200)}, {"features": 1, "label": True}]
    )
    assert batch.features.tolist() == [1.5, 2, 1]
    assert batch.labels.tolist() == [7, 200, 1]


@pytest.mark.parametrize("padding", [None, Padding()])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [(None, "object"), ("1.5", "<U3"), (np.datetime64("2020-01-01"), r"datetime64\[D\]"), (1j, "complex128")],
)
def test_what_is_no_real_number_is_not_made_one(value: Any, dtype: str, padding: Padding | None) -> None:
    records = [{"features": np.zeros(2), "label": 0.5}, {"features": np.zeros(2), "label": value}]
    said = rf"record 1 of list: .* 'label' is {dtype}, the records before it float32"
    with pytest.raises(RecordError, match=said):
        list(etl.RawIterator(records, NOTHING, batch_size=2, padding=padding))


@pytest.mark.parametrize("padding", [None, Padding()])
@pytest.mark.parametrize(
    "raising", [partial(np.errstate, over="raise"), partial(warnings.catch_warnings, action="error")]
)
def test_a_number_that_overflows_names_its_record_where_that_is_made_an_error(
    raising: Callable[[], AbstractContextManager[Any]], padding: Padding | None
) -> None:
    records = [{"features": np.full(2, value), "label": 0} for value in (1.0, 1e5)]
    said = "record 1 of list: failed at stage 'collate': overflow encountered in cast"
    with raising(), pytest.raises(RecordError, match=said):
        list(etl.RawIterator(records, NOTHING, 2, dtype="float16", padding=padding))


@pytest.mark.parametrize("record", [{"label": 0}, {}])
def test_a_record_without_features_says_what_it_has(record: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=r"record 0 of list.*no field 'features'; it has ('label'|none)"):
        load([record])


def test_a_pair_is_not_a_record_and_the_message_says_what_is_one() -> None:
    with pytest.raises(RecordError, match="it is a tuple; a record is a mapping with 'features' and 'label'"):
        load([(np.zeros(3), 1)])


def test_the_pipeline_runs_once_a_record_even_if_it_works_in_place() -> None:
    calls = []

    def centred(record: Record) -> Record:
        calls.append(int(record["label"]))
        record["features"][...] -= 1
        return record

    records = [{"features": np.full(2, number), "label": number} for number in range(6)]
    batches = list(etl.RawIterator(records, etl.Pipeline([centred]), batch_size=4))
    assert calls == [0, 1, 2, 3, 4, 5]
    assert [batch.features[:, 0].tolist() for batch in batches] == [[-1, 0, 1, 2], [3, 4]]
