"""Records that cannot be stored are refused with an error that names the record and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave

GOOD = {"x": np.zeros((2, 3), np.uint8), "y": 1}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {**GOOD, "x": np.zeros((3, 2), np.uint8)},
            r"record 1: field 'x' is uint8 of shape \(3, 2\); the first is uint8 \[2, 3\]",
        ),
        ({**GOOD, "x": np.zeros((2, 3), np.int8)}, r"record 1: field 'x' is int8 .* the first is uint8"),
        ({**GOOD, "y": 1.0}, r"record 1: field 'y' is float64 of shape \(\); the first is int64"),
        ({**GOOD, "y": np.array([1])}, r"record 1: field 'y' is int64 of shape \(1,\)"),
        ({**GOOD, "x": [[1], [2, 3]]}, "record 1: field 'x' is not an array"),
        ({"x": GOOD["x"]}, r"record 1 has fields \['x'\]; the first has \['x', 'y'\]"),
        ({**GOOD, 3: 1}, r"record 1 has fields \['x', 'y', 3\]; the first has"),
        (None, "record 1 is NoneType; the first is a mapping"),
    ],
)
def test_a_record_unlike_the_first_raises_an_error_that_describes_both(
    second: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(presave.StoreError, match=message):
        presave.write(tmp_path / "s", [GOOD, second])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"x": object()}, "record 0: field 'x' has dtype object, which cannot be stored"),
        ({"x": "text"}, "record 0: field 'x' has dtype <U4, which cannot be stored"),
        ({"x": np.datetime64("2020-01-01")}, r"dtype datetime64\[D\], which cannot be stored"),
        ({"x": np.zeros((3, 0))}, r"record 0: field 'x' has shape \(3, 0\), which has no elements"),
        ({"x": [[1], [2, 3]]}, "record 0: field 'x' is not an array"),
        ({}, "record 0 is dict; a record is a mapping"),
        ([1, 2], "record 0 is list; a record is a mapping"),
    ],
)
def test_a_first_record_that_cannot_be_stored_is_refused(first: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match=message):
        presave.write(tmp_path / "s", [first])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("records", "settings", "message"),
    [
        ([], {}, "there are no records to write to"),
        ([GOOD], {"shard_nbytes": 0}, "shard_nbytes must be at least 1, not 0"),
        ([GOOD], {"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_impossible_arguments_are_refused(
    records: list[Mapping[str, Any]], settings: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(presave.StoreError, match=message):
        presave.write(tmp_path / "s", records, **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("records", "ragged", "message"),
    [
        ([GOOD], ["z", "x"], "ragged contains 'z', which record 0 does not have"),
        ([GOOD], ["y"], "record 0: field 'y' is a scalar, which cannot be ragged"),
        (
            [GOOD, {**GOOD, "x": np.zeros(3, np.uint8)}],
            ["x"],
            r"record 1: field 'x' is uint8 of shape \(3,\); .*\[\*, \*\]",
        ),
        ([GOOD, {**GOOD, "x": np.zeros((1, 1))}], ["x"], "record 1: field 'x' is float64 of shape"),
        ([GOOD, {**GOOD, "y": np.zeros(2, int)}], ["x"], r"record 1: field 'y' is int64 of shape \(2,\)"),
        ([{"x": np.array(["text"])}], ["x"], "record 0: field 'x' has dtype <U4, which cannot be stored"),
        ([{"x": np.zeros((0, 2))}], [], r"record 0: field 'x' has shape \(0, 2\), which has no elements to store"),
    ],
)
def test_a_record_that_does_not_fit_its_ragged_fields_is_refused(
    records: list[Any], ragged: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(presave.StoreError, match=message):
        presave.write(tmp_path / "s", records, ragged=ragged)
    assert not list(tmp_path.iterdir())


def test_the_error_for_another_shape_names_the_argument_that_allows_it(tmp_path: Path) -> None:
    records = [GOOD, {**GOOD, "x": np.zeros((3, 2), np.uint8)}]
    with pytest.raises(presave.StoreError, match=r"pass ragged=\['x'\]"):
        presave.write(tmp_path / "s", records)
    with presave.write(tmp_path / "s", records, ragged=["x"]) as store:
        assert [values.shape for values in store.gather([1, 0])["x"]] == [(3, 2), (2, 3)]
