"""Records and arguments that padding refuses, and the messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from tests.sequences import NOTHING, Sequences, every_other_step_unsaid, sequences


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multiple_of": 0}, "multiple_of must be a whole number of at least 1, not 0"),
        ({"length": 0}, "length must be a whole number of at least 1, not 0"),
        ({"length": 8, "multiple_of": 4}, "length=8 and multiple_of=4: give one of them"),
        ({"fields": "label"}, r"fields is a collection of names, such as \['label'\]"),
        ({"fields": ["lable"]}, "fields has 'lable'; only 'features' and 'label' can be padded"),
    ],
)
def test_padding_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        etl.Padding(**settings)


def record(steps: int, **fields: Any) -> etl.Record:
    return {"features": np.zeros((steps, 2), np.int64), **fields}


@pytest.mark.parametrize(
    ("records", "padding", "message"),
    [
        ([record(2), record(3)], None, r"shape \(3, 2\), the records before it \(2, 2\).*padding=etl.Padding\(\)"),
        ([record(2), record(9)], etl.Padding(length=8), "has 9 steps and is padded to 8; raise that length"),
        ([record(2), {"features": np.zeros((2, 3), np.int64)}], etl.Padding(), r"has shape \(2, 3\), the records befo"),
        ([record(2), {"features": np.zeros(2, np.int64)}], etl.Padding(), r"has shape \(2,\), the records before it"),
        (
            [record(2), record(2, features_mask=[1])],
            etl.Padding(),
            "has 1 steps, the field that it masks has 2",
        ),
        ([record(2), record(2, label=1)], etl.Padding(), "it has fields features, label, the records before it featur"),
    ],
)
def test_a_record_that_cannot_be_padded_is_named(records: list[Any], padding: Any, message: str) -> None:
    with pytest.raises(etl.RecordError, match=f"record 1 of list: failed at stage 'collate': .*{message}"):
        list(etl.RawIterator(records, NOTHING, 2, padding=padding))


def test_an_impossible_padding_value_is_an_error_at_the_first_record() -> None:
    with pytest.raises(etl.RecordError, match=r"'features' is int64, which cannot hold the padding value 0\.5"):
        list(etl.RawIterator([record(2)], NOTHING, 2, padding=etl.Padding(0.5)))
    shared = {"features": (np.zeros(2), np.zeros(3)), "features_mask": np.ones(2)}
    with pytest.raises(etl.RecordError, match="it has one 'features_mask' for a tuple; give a tuple of masks"):
        list(etl.RawIterator([shared], NOTHING, 2, padding=etl.Padding()))


def test_a_stage_that_changes_lengths_without_declaring_it_is_detected(tmp_path: Path) -> None:
    pipeline, source = etl.Pipeline([every_other_step_unsaid]), Sequences(sequences())
    with presave.write(tmp_path / "s", etl.records(source, NOTHING), ragged=["features"]) as store:
        raw = etl.RawIterator(source, pipeline, padding=etl.Padding())
        saved = etl.PresavedIterator(store, pipeline, padding=etl.Padding())
        for iterator in (raw, saved):
            with pytest.raises(etl.RecordError, match=r"steps and the .* say \d+; a stage .* changes_length = True"):
                list(iterator)


@pytest.mark.parametrize("lengths", [[1, 2], np.ones((40, 1), int), np.ones(40)])
def test_lengths_that_are_not_one_for_each_record_are_refused(lengths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Sequences(sequences())
    monkeypatch.setattr(Sequences, "lengths", lengths)
    with pytest.raises(ValueError, match="they must be integers, one for each of its 40 records"):
        etl.RawIterator(source, NOTHING, padding=etl.Padding())
