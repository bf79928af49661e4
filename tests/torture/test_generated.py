"""Tables and manifests that hypothesis makes up: what it says of a fault is the smallest input that shows it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
from tests.torture.conftest import HowMany, Tally
from tests.torture.corrupted_stores import KINDS
from tests.torture.mutated_files import INPUTS

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
# No whole numbers, which are labels as they are, no words for missing values, and no blanks around, which are ignored.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=8).map(
    lambda text: f"c{text}".strip()
)
# Cells that numbers are mistaken for, and any.
CELLS = st.one_of(
    st.sampled_from(
        ["", " ", "nan", "inf", "-inf", "1e999", "0x1", "1_0", "+1", "1,5", '"', '""', "#", "\t", "٣", "\ufeff"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    NUMBERS.map(repr),
)
ENDS = st.sampled_from(["\n", "\r\n"])
DELIMITERS = st.sampled_from(",;\t|")
# What may stand in a manifest in place of anything.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([-1, 2**60, 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[float]], list[str]]:
    """Rows of numbers, and a label for each."""
    width, height = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=height, max_size=height))
    return rows, draw(st.lists(NAMES, min_size=height, max_size=height))


def test_tables_come_back_as_they_were_written(tmp_path: Path, how_many: HowMany, tally: Tally) -> None:
    file = tmp_path / "table.csv"

    @settings(max_examples=how_many(100, 3000))
    @given(tables(), ENDS, DELIMITERS, st.booleans())
    def read(table: tuple[list[list[float]], list[str]], end: str, delimiter: str, with_mark: bool) -> None:
        rows, labels = table
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter, lineterminator=end)
        writer.writerow([*(f"column {number}" for number in range(len(rows[0]))), "label"])
        writer.writerows([*row, label] for row, label in zip(rows, labels, strict=True))
        file.write_bytes(text.getvalue().encode("utf-8-sig" if with_mark else "utf-8"))
        source = etl.Csv(file, label="label", delimiter=delimiter)
        features = np.array([source[number]["features"] for number in range(len(source))])
        np.testing.assert_array_equal(features, np.array(rows, np.float32))
        assert source.classes is not None
        assert [source.classes[source[number]["label"]] for number in range(len(source))] == labels
        tally("a table that hypothesis makes up", "every value and label comes back")

    read()


@pytest.mark.filterwarnings("ignore:.*the first .*no name in line:UserWarning")
def test_tables_of_anything_are_read_or_refused_with_the_file(tmp_path: Path, how_many: HowMany, tally: Tally) -> None:
    made = INPUTS["CSV"](tmp_path)

    @settings(max_examples=how_many(50, 2000))
    @given(st.lists(st.lists(CELLS, max_size=4), max_size=5), ENDS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    def read(rows: list[list[str]], end: str, encoding: str) -> None:
        content = end.join(",".join(row) for row in rows).encode(encoding)
        tally("a table of anything", made.attempt(content))

    read()


def test_manifests_with_anything_in_any_place_are_read_or_refused_with_the_store(
    tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    every = {kind: INPUTS[f"manifest of {kind}"](tmp_path) for kind in KINDS}

    @settings(max_examples=how_many(50, 3000))
    @given(st.data())
    def read(data: st.DataObject) -> None:
        made = every[data.draw(st.sampled_from(sorted(every)), "kind")]
        manifest = json.loads(made.corpus[0])
        for _ in range(data.draw(st.integers(1, 3), "changes")):
            _put(manifest, data)
        tally("a manifest with anything in any place", made.attempt(json.dumps(manifest, indent=1).encode()))

    read()


def _put(value: Any, data: st.DataObject) -> None:
    """Something else in a place of `value`, or further down."""
    places = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    place = data.draw(st.sampled_from(places), "place")
    if isinstance(value[place], (dict, list)) and value[place] and data.draw(st.booleans(), "further down"):
        _put(value[place], data)
    else:
        value[place] = data.draw(JSON, "value")
