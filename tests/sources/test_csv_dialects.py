"""Tables as R, pandas and spreadsheets write them: read rightly, or refused with a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from tests.csv_files import write

WORDS = ["NA", "na", "N/A", "#N/A", "NaN", "-nan", "NULL", "null", "None", "?", ".", "<NA>", " NA ", '"NA"', ""]


def labels(source: etl.Csv) -> list[str]:
    assert source.classes is not None
    return [source.classes[source[number]["label"]] for number in range(len(source))]


@pytest.mark.parametrize(
    "written", [["b", "b "], [" b", "b"], ["b\t", "b"], ['"b "', "b"], ["b", "b\u00a0"], [' "b"', "b"], [" b", " b "]]
)
def test_blanks_around_a_label_make_no_class_of_their_own(written: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, "x,y\n1,a\n" + "".join(f"2,{each}\n" for each in written))
    source = etl.Csv(path, label="y")
    assert source.classes == ["a", "b"]
    assert labels(source) == ["a", "b", "b"]
    assert labels(etl.Csv(path, label="y", classes=["b ", "a"])) == ["a", "b ", "b "]
    with pytest.raises(ValueError, match="classes holds 'a' twice"):
        etl.Csv(path, label="y", classes=["a", " a"])


def test_blanks_around_names_of_columns_do_not_count(tmp_path: Path) -> None:
    source = etl.Csv(write(tmp_path, "a, b, y \n1, 2, u\n"), label="y", features=["b"])
    assert (source[0]["features"].tolist(), source.classes) == ([2], ["u"])


@pytest.mark.parametrize(
    "content",
    [
        ",a,b,y\n0,1,2,u\n1,3,4,v\n",
        '"","a","b","y"\n"1",1,2,"u"\n"2",3,4,"v"\n',
        "Unnamed: 0,a,b,y\n0,1,2,u\n1,3,4,v\n",
        "Unnamed: 0.1,Unnamed: 0,a,b,y\n0,0,1,2,u\n1,1,3,4,v\n",
        ",,a,b,y\n0,0,1,2,u\n0,1,3,4,v\n",
        ",a,b,y\nMazda RX4,1,2,u\nDatsun 710,3,4,v\n",
        "\ufeff,a,b,y\r\n0,1,2,u\r\n1,3,4,v\r\n",
    ],
)
def test_row_names_are_no_feature(content: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.warns(
        UserWarning, match="no name in line 1, like row names of R and pandas, and no part in the features"
    ) as caught:
        source = etl.Csv(path, label="y")
    assert caught[0].filename == __file__
    assert [source[number]["features"].tolist() for number in (0, 1)] == [[1, 2], [3, 4]]
    assert source.options["features"] == ["a", "b"]
    if "Mazda" not in content:
        assert len(etl.Csv(path, label="y", features=[0, "a"])[0]["features"]) == 2


def test_row_names_of_sequences_are_no_feature_either(tmp_path: Path) -> None:
    for name in ("1.csv", "2.csv"):
        write(tmp_path, ",a\n0,5\n1,6\n", name)
    with pytest.warns(UserWarning, match="like row names of R and pandas") as caught:
        source = etl.Sequences(tmp_path)
    assert len(caught) == 1
    assert source[1]["features"].tolist() == [[5], [6]]


@pytest.mark.parametrize(("content", "label"), [(",a\nu,1\nv,2\n", 0), (",a\nu,1\nv,2\n", ""), ("a,\n1,2\n", None)])
def test_a_column_without_a_name_may_be_the_label_or_a_later_one_a_feature(
    content: str, label: Any, tmp_path: Path
) -> None:
    source = etl.Csv(write(tmp_path, content), label=label)
    assert source[0]["features"].tolist() == ([1, 2] if label is None else [1])


@pytest.mark.parametrize("word", WORDS)
def test_missing_values_are_replaced_or_named(word: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"a,b,y\n1,2,u\n3,{word},v\n")
    assert etl.Csv(path, label="y", missing=-1)[1]["features"].tolist() == [3, -1]
    assert np.isnan(etl.Csv(path, label="y", missing=np.nan)[1]["features"][1])
    with pytest.raises(ValueError, match=r"table\.csv, line 3, column 'b': the value is missing.*; pass missing=VALUE"):
        etl.Csv(path, label="y")[1]


@pytest.mark.parametrize("others", [["u", "v"], ["1", "0"]], ids=["names", "numbers"])
@pytest.mark.parametrize("word", WORDS)
def test_a_missing_label_is_no_class(word: str, others: list[str], tmp_path: Path) -> None:
    rows = [others[0], word, others[1]]
    for order in (rows, rows[::-1], [word, *others]):
        path = write(tmp_path, "x,y\n" + "".join(f"1,{each}\n" for each in order))
        with pytest.raises(ValueError, match=rf"line {order.index(word) + 2}, column 'y': the label is missing"):
            etl.Csv(path, label="y")


def test_a_class_may_be_called_none_or_na_if_the_caller_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "x,y\n1,NA\n1,none\n")
    assert labels(etl.Csv(path, label="y", classes=["none", "NA"])) == ["NA", "none"]
    assert etl.Csv(write(tmp_path, "x,y\n1,none\n1,mild\n"), label="y").classes == ["mild", "none"]


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (
            "a;b;y\n1;2;u\n",
            {"label": "y"},
            r"has no column 'y'; it has 'a;b;y'; if ';' separates the columns, pass delim",
        ),
        (
            "a;b\n1;2\n",
            {},
            r"line 2, column 'a;b': '1;2' is not a number; if ';' separates the columns, pass delimiter=';'",
        ),
        ("a\tb\n1\t2\n", {}, r"is not a number; if '\\t' separates the columns, pass delimiter='\\t'"),
        ("a b y\n1 2 u\n", {"label": -1}, r"no columns for features; it has 'a b y'; if ' ' separates the columns"),
        ("a;b\n1,5;2,5\n", {}, r"line 2 has 3 fields, not 1; if ';' separates the columns"),
        ("a;b\n1,5;2\n", {"delimiter": ";"}, r"line 2, column 'a': '1,5' is not a number; write decimals with a point"),
        ('a,b\n"1,234",2\n', {}, r"'1,234' is not a number; write decimals with a point, and thousands without"),
        ("a,b\n1,5,2\n", {}, r"line 2 has 3 fields, not 2; put values that hold ',' in quotes"),
        ('a,b\n"1",2,3\n', {}, r"line 2 has 3 fields, not 2; .* R's write.table, write it again with row.names=FALSE"),
        ("sep=;\na;b\n1;2\n", {}, r"line 1 is a spreadsheet's note on the separator, 'sep=;': remove the line"),
        ("sep=;\na;b\n1;2\n", {"delimiter": ";"}, r"line 1 is a spreadsheet's note on the separator"),
        (
            "# made by hand\na,b\n1,2\n",
            {},
            r"line 2 has 2 fields, not 1; line 1 begins with '#': comments are not read",
        ),
        ("a,b\n1,2\n", {"label": "c"}, r"has no column 'c'; it has a, b$"),
        ("a,body mass\n1,2\n", {"label": "body_mass"}, r"has no column 'body_mass'; it has a, 'body mass'$"),
    ],
)
def test_another_dialect_is_refused_with_what_to_do(
    content: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=rf"table\.csv.*{said}"):
        etl.Csv(path, **options)[0]
