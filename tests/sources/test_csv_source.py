"""Csv: records of a file's rows, finding and storing rows, and errors for malformed lines."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
from etl.sources import RecordError, csv_layout, csv_rows
from etl.sources import labels as csv_labels
from tests.csv_files import write

TABLE = "width,height,kind\n1.5,2,cat\n-3e2,0.25,dog\n7,8,cat\n"


def features(source: etl.Csv) -> list[list[float]]:
    return [source[number]["features"].tolist() for number in range(len(source))]


def labels(source: etl.Csv) -> list[Any]:
    return [source[number]["label"] for number in range(len(source))]


def test_a_record_has_the_columns_as_float32_and_the_number_of_its_class(tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, TABLE), label="kind")
    assert len(source) == 3
    assert features(source) == [[1.5, 2], [-300, 0.25], [7, 8]]
    assert source[0]["features"].dtype == np.float32
    assert source[0]["features"].shape == (2,)
    assert labels(source) == [0, 1, 0]
    assert source.classes == ["cat", "dog"]
    assert source.describe(2) == "line 4"
    with pytest.raises(IndexError, match=r"record 3 of .*, which holds 3"):
        source[3]


def test_columns_are_chosen_by_name_or_number(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,c\n1,2,3\n")
    assert features(etl.Csv(path, features=["c", "a"])) == [[3, 1]]
    assert features(etl.Csv(path, label=-1, features=["b"])) == [[2]]
    assert features(etl.Csv(path, label="b")) == [[1, 3]]
    assert "label" not in etl.Csv(path, features=["a"])[0]


def test_columns_and_classes_may_be_in_arrays_as_of_another_table(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,kind\n1,2,u\n3,4,v\n")
    names: dict[str, Any] = {"features": np.array(["b", "a"]), "classes": np.array(["v", "u"])}
    source = etl.Csv(path, label="kind", **names)
    assert features(source) == [[2, 1], [4, 3]]
    assert labels(source) == [1, 0]
    written = etl.Csv(path, label="kind", features=["b", "a"], classes=["v", "u"])
    assert (source.identity, source.options) == (written.identity, written.options)


def test_choosing_many_columns_takes_no_list_of_all_names_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(names: Any) -> str:
        raise AssertionError("a list of all names was made")

    monkeypatch.setattr(csv_layout, "_quoted", fail)
    names = [f"x{number}" for number in range(2_000)]
    path = write(tmp_path, f"{','.join(names)}\n{','.join(map(str, range(2_000)))}\n")
    assert features(etl.Csv(path, label="x0", features=names[:0:-1])) == [list(range(1_999, 0, -1))]


def test_without_a_header_the_first_line_is_a_row_and_columns_are_numbers(tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, "1,2,0\n3,4,1\n"), label=2, header=False)
    assert features(source) == [[1, 2], [3, 4]]
    assert source.describe(0) == "line 1"


def test_a_first_line_of_numbers_is_not_taken_for_names_unless_a_column_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "1990,1991\n1,2\n")
    with pytest.raises(ValueError, match=r"table\.csv, line 1 holds numbers: pass header=False"):
        etl.Csv(path)
    assert features(etl.Csv(path, features=["1990", "1991"])) == [[1, 2]]


def test_a_first_row_is_not_taken_for_names_because_its_label_is_one(tmp_path: Path) -> None:
    path = write(tmp_path, "5.1,3.5,setosa\n4.9,3.0,virginica\n")
    for columns in ({"label": -1}, {"label": 2, "features": [0]}, {"features": [0, 1]}):
        with pytest.raises(ValueError, match=r"table\.csv, line 1 holds numbers: pass header=False"):
            etl.Csv(path, **columns)
    assert len(etl.Csv(path, label=-1, header=False)) == 2
    assert len(etl.Csv(path, label="setosa")) == 1
    assert len(etl.Csv(write(tmp_path, "x,1,setosa\n1,2,u\n"), label=-1)) == 1


def test_whole_numbers_are_labels_as_they_are(tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, "x,y\n0,3\n0,-1\n0,+20\n"), label="y")
    assert labels(source) == [3, -1, 20]
    assert source.classes is None
    (batch,) = etl.RawIterator(source, etl.Pipeline([]))
    assert batch.labels.dtype == np.int64


def test_targets_of_a_regression_have_the_dtype_of_features(tmp_path: Path) -> None:
    path = write(tmp_path, "x,y\n0,3\n0,2.5\n")
    for dtype in ("float32", "float64"):
        source = etl.Csv(path, label="y", regression=True, dtype=dtype)
        assert labels(source) == [3, 2.5]
        assert source[0]["label"].dtype == source[0]["features"].dtype == dtype


def test_given_classes_decide_the_numbers_and_turn_numbers_into_names(tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, "x,y\n0,1\n0,1.5\n0,b\n"), label="y", classes=["b", "1.5", "1", "unused"])
    assert labels(source) == [2, 1, 0]
    assert source.classes == ["b", "1.5", "1", "unused"]


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        ("0\n1\nx\n", {}, r"line 4, column 'y': label 'x' is no whole number, as the first one is; pass regression=Tr"),
        ("0\n1\n2.5\n", {}, r"line 4, column 'y': label '2.5' is no whole number, as the first one is"),
        ("2.5\n1\n", {}, r"line 2, column 'y': label '2.5' is no whole number; pass regression=True, or classes="),
        ("1\n \nb\n", {}, r"line 3, column 'y': the label is missing"),
        ("1\n99999999999999999999\n", {}, r"line 3, column 'y': label '99999999999999999999' does not fit into int64"),
        ("a\nc\n", {"classes": ["a", "b"]}, r"line 3, column 'y': label 'c' is not one of the 2 classes"),
    ],
)
def test_a_wrong_label_is_named_when_the_file_is_opened(
    column: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "x,y\n" + "".join(f"0,{line}" for line in column.splitlines(keepends=True)))
    with pytest.raises(ValueError, match=r"table\.csv, " + said):
        etl.Csv(path, label="y", **options)


@pytest.mark.parametrize(("text", "said"), [("x", "'x' is not a number"), ("", "missing"), ("1e39", "too large")])
def test_a_wrong_target_is_named_when_it_is_read(text: str, said: str, tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, f"x,y\n0,1\n0,{text}\n"), label="y", regression=True)
    source[0]
    with pytest.raises(ValueError, match=rf"table\.csv, line 3, column 'y': .*{said}"):
        source[1]


def test_the_first_of_very_many_wrong_labels_is_named_without_looking_for_each_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "x,y\n0,1\n" + "".join(f"0,{number}.5\n" for number in range(100_000)))
    with pytest.raises(ValueError, match=r"table\.csv, line 3, column 'y': label '0\.5' is no whole number"):
        etl.Csv(path, label="y")


def test_labels_that_are_all_different_are_refused_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_labels, "MAX_CLASSES", 5)
    path = write(tmp_path, "x,y\n" + "".join(f"0,name{number}\n" for number in range(6)))
    with pytest.raises(ValueError, match="column 'y': more than 5 different labels; choose the column that names"):
        etl.Csv(path, label="y")
    whole = write(tmp_path, "x,y\n" + "".join(f"0,{number}\n" for number in range(9)))
    assert labels(etl.Csv(whole, label="y")) == list(range(9))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.removesuffix("\n"),
        lambda text: text + "\n\n\n",
        lambda text: text.replace("\n", "\r\n") + "\r\n\r\n",
        lambda text: "\ufeff" + text,
        lambda text: '"width","height","kind"\n' + text.partition("\n")[2],
        lambda text: text.replace("cat", '"cat"').replace("7", '"7"'),
        lambda text: text.replace("1.5", " 1.5 "),
    ],
    ids=["CR LF", "no end", "empty lines", "CR LF, empty lines", "mark", "quoted names", "quoted values", "spaces"],
)
def test_these_files_say_the_same(change: Any, tmp_path: Path) -> None:
    expected = etl.Csv(write(tmp_path, TABLE), label="kind")
    source = etl.Csv(write(tmp_path, change(TABLE), "other.csv"), label="kind")
    assert features(source) == features(expected)
    assert labels(source) == labels(expected)
    assert source.classes == expected.classes
    assert source.layout.names == ("width", "height", "kind")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("a,b\n", "holds no rows"),
        ("a,b\n\n", "holds no rows"),
        ("\na,b\n1,2\n", "line 1 is empty"),
        ("a,b\n1,2\n3\n", "line 3 has 1 fields, not 2"),
        ("a,b\n1,2\n3,4,5\n", "line 3 has 3 fields, not 2"),
        ("a,b\n1,2,3\n4\n", "line 2 has 3 fields, not 2"),
        ("a,b\n1,2\n\n3,4\n", "line 3 is empty; only lines at the end may be"),
        ('a,b\n1,2\n"3,4\n5",6\n', "line 3: a quote is not closed; a field may not go on in the next line"),
        ('"a,b\n1,2\n', "line 1: a quote is not closed"),
        ("a,b\r1,2\r", "line 1 holds a carriage return; lines end in LF or CR LF"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "is a gzip file, whose rows cannot be reached at random; unpack it"),
        ("a,b\n1,2\n".encode("utf-16"), "is UTF-16 text; convert it to UTF-8"),
        ("ä,b\n1,2\n".encode("latin-1"), "line 1 is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_table_is_refused_when_opened(content: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"table\.csv,? {said}"):
        etl.Csv(write(tmp_path, content))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("abc", "'abc' is not a number"),
        ("1_000", "'1_000' is not a number"),
        ("  ", "the value is missing; pass missing=VALUE, or remove the line"),
        ("1e39", "1e39 is too large for float32"),
        ("1e999", "1e999 is too large for float32"),
    ],
)
def test_a_wrong_value_is_named_when_it_is_read(field: str, said: str, tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, f"a,b\n1,2\n3,{field}\n"))
    assert source[0]["features"].tolist() == [1, 2]
    with pytest.raises(ValueError, match=rf"table\.csv, line 3, column 'b': {said}"):
        source[1]
    with pytest.raises(RecordError, match=r"record 1 of .*\(line 3\): failed at stage 'read'"):
        list(etl.RawIterator(source, etl.Pipeline([])))


def test_a_quote_in_the_middle_of_a_field_is_refused(tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, 'a,b\n1,5"3"\n'))
    with pytest.raises(ValueError, match=r"line 2: a quote within '5\"3\"'; write it twice"):
        source[0]


def test_float64_keeps_what_float32_rounds_or_cannot_hold(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n0.1,16777217\n1e300,-inf\n")
    assert features(etl.Csv(path, dtype="float64")) == [[0.1, 16777217], [1e300, -np.inf]]
    assert etl.Csv(path)[0]["features"].tolist() == [np.float32(0.1), 16777216]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "kidn"}, "has no column 'kidn'; it has width, height, kind"),
        ({"label": 3}, "has no column 3; it has 3"),
        ({"label": -4}, "has no column -4"),
        ({"label": "kind", "features": ["kind"]}, "column 'kind' cannot be the label and a feature"),
        ({"features": []}, "has no columns for features"),
        ({"delimiter": ";;"}, "delimiter must be one ASCII character"),
        ({"delimiter": '"'}, "delimiter must be one ASCII character"),
        ({"dtype": "int8"}, "unknown dtype 'int8'; known: float32, float64"),
        ({"regression": True}, "pass label="),
        ({"classes": ["a"]}, "pass label="),
        ({"label": "kind", "regression": True, "classes": ["a"]}, "either targets .* or names"),
        ({"label": "kind", "classes": ["cat", "cat"]}, "classes holds 'cat' twice"),
        ({"label": "kind", "classes": []}, "classes is empty"),
        ({"label": "kind", "classes": "cat"}, r"classes is a collection of names, such as \['cat'\]"),
        ({"label": "kind", "classes": [1, 2]}, "classes holds 1, which is no text; write it as labels are, '1'"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        etl.Csv(write(tmp_path, TABLE), **options)


def test_a_name_that_two_columns_have_chooses_neither(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has more than one column 'a'"):
        etl.Csv(write(tmp_path, "a,a\n1,2\n"), label="a")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        etl.Csv(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not a file"):
        etl.Csv(tmp_path)


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6).filter(
    lambda name: not csv_labels.is_missing(name.encode()) and not csv_labels.NUMBER.fullmatch(name.encode())
)


@settings(max_examples=30)
@given(
    rows=st.integers(1, 3).flatmap(
        lambda columns: st.lists(
            st.tuples(st.lists(numbers, min_size=columns, max_size=columns), names), min_size=1, max_size=60
        )
    ),
    line_end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    place=st.integers(0, 3),
    chunk_nbytes=st.integers(1, 400),
    is_cut=st.booleans(),
)
def test_any_table_that_pythons_writer_writes_is_read_back_bit_for_bit_in_any_order(
    rows: list[tuple[list[float], str]],
    line_end: str,
    quoting: Any,
    delimiter: str,
    place: int,
    chunk_nbytes: int,
    is_cut: bool,
) -> None:
    columns = len(rows[0][0])
    place = min(place, columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=line_end, quoting=quoting, delimiter=delimiter)
    for values, name in [([f"x{column}" for column in range(columns)], "the label"), *rows]:
        writer.writerow([*values[:place], name, *values[place:]])
    content = text.getvalue().removesuffix(line_end) if is_cut else text.getvalue()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "CHUNK_NBYTES", chunk_nbytes)
        source = etl.Csv(write(Path(folder), content), label="the label", delimiter=delimiter)
        assert source.classes == sorted({name.strip() for _, name in rows})
        assert len(source) == len(rows)
        for number in np.random.default_rng(0).permutation(len(rows)).tolist():
            record = source[number]
            assert record["features"].tobytes() == np.array(rows[number][0], np.float32).tobytes()
            assert source.classes[record["label"]] == rows[number][1].strip()


@settings(max_examples=30)
@given(st.data())
def test_a_damaged_line_is_named_wherever_chunks_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 50))
    lines = [f"{number},{number}" for number in range(count)]
    wrong = data.draw(st.integers(0, count - 1))
    lines[wrong] = data.draw(st.sampled_from(["1", "1,2,3", ",,", '1,"2']))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "CHUNK_NBYTES", data.draw(st.integers(1, 100)))
        path = write(Path(folder), "\n".join(["a,b", *lines, ""]))
        with pytest.raises(ValueError, match=rf"table\.csv, line {wrong + 2}(:| has)"):
            etl.Csv(path)


def test_a_line_without_an_end_is_not_read_into_memory_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.sources.csv_layout.MAX_LINE_NBYTES", 1 << 20)
    monkeypatch.setattr(csv_rows, "CHUNK_NBYTES", 1 << 10)
    with pytest.raises(ValueError, match=r"line 1 is longer than 1 MiB; is this a CSV file\?"):
        etl.Csv(write(tmp_path, b"a" * (2 << 20)))
    with pytest.raises(ValueError, match="line 2 is longer than 1 MiB"):
        etl.Csv(write(tmp_path, b"a\n" + b"1" * (2 << 20)))
