"""Sequences: files and arrays of varying length, their labels and lengths, and errors for malformed ones."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl.commands import main
from etl.configuration import Configuration
from etl.loading import Padding
from etl.sources import RecordError
from tests.user_modules import user_module

RANDOM = np.random.default_rng(0)


def write(root: Path, **files: str) -> Path:
    """Files named `a__b` for `a/b.csv`."""
    for name, content in files.items():
        path = root / f"{name.replace('__', '/')}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def steps(*rows: tuple[float, ...]) -> str:
    columns = "abcdef"[: len(rows[0])]
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows), ""])


def flat(root: Path) -> Path:
    return write(root, s1=steps((1, 2), (3, 4)), s2=steps((5, 6)), s10=steps((7, 8), (9, 10), (11, 12)))


def test_a_record_has_the_steps_of_its_file_as_float32(tmp_path: Path) -> None:
    source = etl.Sequences(flat(tmp_path))
    assert source.ragged == ("features",)
    record = source[0]
    assert record.keys() == {"features"}
    assert record["features"].dtype == np.float32
    assert record["features"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(IndexError):
        source[3]


def test_files_are_sorted_with_numbers_by_value(tmp_path: Path) -> None:
    source = etl.Sequences(flat(tmp_path))
    assert [source.describe(number) for number in range(3)] == ["s1.csv", "s2.csv", "s10.csv"]


def test_lengths_are_the_steps_of_each_record(tmp_path: Path) -> None:
    flat(tmp_path)
    (tmp_path / "s2.csv").write_bytes(b"\xef\xbb\xbfa,b\r\n5,6\r\n1,1\r\n3,3\r\n4,4\r\n\r\n")
    (tmp_path / "s10.csv").write_text("a,b\n7,8")
    source = etl.Sequences(tmp_path)
    assert source.lengths.dtype == np.int64
    assert source.lengths.tolist() == [2, 4, 1] == [len(source[number]["features"]) for number in range(3)]


def test_labels_in_a_file_belong_to_names_with_or_without_their_ending(tmp_path: Path) -> None:
    flat(tmp_path)
    write(tmp_path, labels="name,label\ns10,walk\ns1.csv,run\ns2,walk\n")
    source = etl.Sequences(tmp_path)
    assert len(source) == 3
    assert source.classes == ["run", "walk"]
    assert [source[number]["label"] for number in range(3)] == [0, 1, 1]
    assert source.ragged == ("features",)
    given = etl.Sequences(tmp_path, classes=["walk", "run"])
    assert [given[number]["label"] for number in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_labels_in_a_file_may_be_separated_otherwise_than_steps(separator: str, delimiter: str, tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        write(tmp_path, **{name: steps((1, 2), (3, 4)).replace(",", delimiter)})
    write(tmp_path, labels="name,label\ns2,walk\ns1,run\n".replace(",", separator))
    source = etl.Sequences(tmp_path, delimiter=delimiter)
    assert source.classes == ["run", "walk"]
    assert [source[number]["label"] for number in range(2)] == [0, 1]


def test_labels_in_a_file_may_be_numbers_of_classes_or_targets(tmp_path: Path) -> None:
    flat(tmp_path)
    write(tmp_path, labels="name,label\ns10,4\ns1,2\ns2,-3\n")
    assert [etl.Sequences(tmp_path)[number]["label"] for number in range(3)] == [2, -3, 4]
    target = etl.Sequences(tmp_path, regression=True)[1]["label"]
    assert (target, target.dtype) == (-3, np.float32)


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    write(tmp_path, walk__2=steps((1,)), walk__10=steps((2,)), run__1=steps((3,)))
    source = etl.Sequences(tmp_path)
    assert source.classes == ["run", "walk"]
    assert [source.describe(number) for number in range(3)] == ["run/1.csv", "walk/2.csv", "walk/10.csv"]
    assert [source[number]["label"] for number in range(3)] == [0, 1, 1]


def test_sequences_in_folders_of_a_class_folder_belong_to_it(tmp_path: Path) -> None:
    write(tmp_path, walk__10=steps((1,)), walk__day2__1=steps((2,)), walk__day10__1=steps((3,)), run__1=steps((4,)))
    source = etl.Sequences(tmp_path)
    found = [(source.describe(number), source[number]["label"]) for number in range(4)]
    assert found == [("run/1.csv", 0), ("walk/10.csv", 1), ("walk/day2/1.csv", 1), ("walk/day10/1.csv", 1)]


def test_a_class_folder_without_sequences_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, walk__1=steps((1,)))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "1.tsv").write_text("a\n1\n")
    with pytest.raises(
        ValueError, match=r"no sequences in class folder run; .*allow_empty=True.*: 1 \.tsv \(not \.csv"
    ):
        etl.Sequences(tmp_path)
    with pytest.warns(UserWarning, match=r"leaves out 1 \.tsv"):
        source = etl.Sequences(tmp_path, allow_empty=True)
    assert source.classes == ["run", "walk"]
    assert source[0]["label"] == 1


@pytest.mark.parametrize("folder", ["", "sub/"])
def test_files_that_are_no_sequences_are_counted_once(folder: str, tmp_path: Path) -> None:
    flat(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("1.tsv", "2.TSV", "notes", ".hidden", "Thumbs.db"):
        (tmp_path / folder / name).write_text("")
    with pytest.warns(UserWarning, match="leaves out") as caught:
        source = etl.Sequences(tmp_path)
    assert [str(each.message) for each in caught] == [
        f"{tmp_path} leaves out 2 .tsv, 1 without a suffix (not .csv files)"
    ]
    assert caught[0].filename == __file__
    assert len(source) == 3


def test_a_column_of_labels_gives_one_for_each_step(tmp_path: Path) -> None:
    write(tmp_path, s1="a,y\n1,0\n2,1\n3,1\n", s2="a,y\n4,2\n")
    source = etl.Sequences(tmp_path, label="y")
    assert source.ragged == ("features", "label")
    assert source[0]["features"].tolist() == [[1], [2], [3]]
    assert source[0]["label"].tolist() == [0, 1, 1]
    assert source[1]["label"].dtype == np.int64
    targets = etl.Sequences(tmp_path, label="y", regression=True)[0]["label"]
    assert (targets.tolist(), targets.dtype) == ([0, 1, 1], np.float32)


def test_a_column_of_names_needs_the_classes(tmp_path: Path) -> None:
    write(tmp_path, s1="a,y\n1,on\n2,off\n", s2="a,y\n4,on\n")
    with pytest.raises(
        ValueError, match=r"s1\.csv, line 2, column 'y': labels are texts; name all of them in classes="
    ):
        etl.Sequences(tmp_path, label="y")
    source = etl.Sequences(tmp_path, label="y", classes=["off", "on"])
    assert source[0]["label"].tolist() == [1, 0]
    assert source.classes == ["off", "on"]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("name,label\ns1,0\n", r"labels\.csv has no label for s2\.csv and 1 more"),
        ("name,label\ns1,0\ns2,0\ns10,0\ns3,0\n", r"line 5, column 'name': 's3' is no sequence here"),
        ("name,label\ns1,0\ns1.csv,0\n", r"line 3, column 'name': 's1\.csv' has a label in line 2 already"),
        ("name,label\ns1,0\ns2,x\ns10,0\n", r"line 3, column 'label': label 'x' is no whole number"),
        ("name,kind\ns1,0\n", r"labels\.csv has no column 'label'; it has name, kind"),
    ],
)
def test_labels_that_do_not_fit_are_named(labels: str, said: str, tmp_path: Path) -> None:
    flat(tmp_path)
    write(tmp_path, labels=labels)
    with pytest.raises(ValueError, match=said):
        etl.Sequences(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n3,x\n", r"s2\.csv, line 3, column 'b': 'x' is not a number"),
        ("a,b\n1,2\n3\n", r"s2\.csv, line 3 has 1 fields, not 2"),
        ("a,c\n1,2\n", r"s2\.csv has columns a, c; .*s1\.csv has a, b"),
        ("a,b\n", r"s2\.csv holds no steps"),
        ("", r"s2\.csv is empty"),
    ],
)
def test_a_damaged_file_is_named_when_it_is_read(content: str, said: str, tmp_path: Path) -> None:
    write(flat(tmp_path), s2=content)
    source = etl.Sequences(tmp_path)
    source[0]
    with pytest.raises(ValueError, match=said):
        source[1]
    with pytest.raises(RecordError, match=r"record 1 of .*\(s2\.csv\): failed at stage 'read'"):
        etl.records(source, etl.Pipeline([]))[1]


@pytest.mark.parametrize(
    ("files", "options", "said"),
    [
        ({}, {}, r"holds no sequences: expected \.csv files"),
        (
            {"a": steps((1,)), "x__b": steps((1,))},
            {},
            r"holds sequences, a\.csv for one, and so do its sub-folders, x/b\.csv for one",
        ),
        ({"a": steps((1,))}, {"regression": True}, r"has no labels\.csv; regression and classes need that file"),
        ({"a": steps((1,))}, {"label": "y"}, r"a\.csv has no column 'y'; it has a"),
        ({"a": "a,y\n"}, {"label": "y"}, r"a\.csv holds no steps, and its labels decide for all files"),
        ({"a": steps((1,))}, {"regression": True, "classes": ["a"]}, "either targets .* or names"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    files: dict[str, str], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        etl.Sequences(write(tmp_path, **files), **options)


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    return [RANDOM.normal(size=(length, 3)).astype(dtype) for length in (4, 1, 7)]


def test_arrays_are_sequences_without_being_copied() -> None:
    features = arrays()
    source = etl.Sequences.from_arrays(features, [2, 0, 1], classes=["a", "b", "c"])
    assert source.classes == ["a", "b", "c"]
    assert source.ragged == ("features",)
    assert source.lengths.tolist() == [4, 1, 7]
    for number, label in enumerate([2, 0, 1]):
        assert source[number]["features"] is features[number]
        assert source[number]["label"] == label
        assert source[number]["label"].dtype == np.int64
    assert "label" not in etl.Sequences.from_arrays(features)[0]


def test_arrays_may_have_a_label_for_each_step() -> None:
    features = arrays()
    source = etl.Sequences.from_arrays(features, [np.arange(len(array), dtype=np.int32) for array in features])
    assert source.ragged == ("features", "label")
    assert source[2]["label"].dtype == np.int64
    assert source[2]["label"].tolist() == list(range(7))


@pytest.mark.parametrize(("given", "kept"), [("int16", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_arrays_of_other_dtypes_are_converted(given: str, kept: str) -> None:
    source = etl.Sequences.from_arrays([array.astype(given) for array in arrays("float64")], [0.5, 1, 2])
    assert source[0]["features"].dtype == source[0]["label"].dtype == kept


@pytest.mark.parametrize(
    ("features", "labels", "said"),
    [
        ([], None, "there are no sequences"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], None, "sequence 1 has 4 columns, the first 3"),
        ([np.zeros((2, 3)), np.zeros(3)], None, r"sequence 1 is float64 of shape \(3,\), not numbers of shape \(steps"),
        ([np.zeros((0, 3))], None, r"sequence 0 is float64 of shape \(0, 3\)"),
        ([np.zeros((2, 3), "U1")], None, "sequence 0 is <U1"),
        ([np.zeros((2, 3))], [1, 2], "1 sequences and 2 labels do not belong together"),
        ([np.zeros((2, 3))], ["cat"], r"the label of sequence 0 is <U3; pass numbers, and names as classes="),
        ([np.zeros((2, 3))], [[1, 2, 3]], r"the label of sequence 0 has shape \(3,\), expected \(2,\)"),
        ([np.zeros((2, 3))] * 2, [1, [1, 2]], r"the label of sequence 1 has shape \(2,\), expected \(\)"),
        ([np.zeros((2, 3)), np.ma.masked_less(np.zeros((2, 3)), 1)], None, "sequence 1 has masked elements"),
        ([np.zeros((2, 3))], [np.ma.masked], "the label of sequence 0 has masked elements"),
    ],
)
def test_arrays_that_do_not_go_together_are_named(features: Any, labels: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        etl.Sequences.from_arrays(features, labels)


@pytest.mark.parametrize("is_per_step", [False, True], ids=["a label each", "a label a step"])
def test_a_store_gives_the_records_back_bit_for_bit(is_per_step: bool, tmp_path: Path) -> None:
    root = tmp_path / "sequences"
    for number in range(20):
        values = RANDOM.normal(size=(RANDOM.integers(1, 9), 2)).astype(np.float32)
        rows = "".join(f"{a},{b},{step % 3}\n" for step, (a, b) in enumerate(values.tolist()))
        write(root, **{f"s{number}": f"a,b,y\n{rows}"})
    if not is_per_step:
        write(root, labels="name,label\n" + "".join(f"s{number},{number % 4}\n" for number in range(20)))
    source = etl.Sequences(root, label="y" if is_per_step else None)
    presave.write(tmp_path / "s", etl.records(source, etl.Pipeline([])), jobs=2).close()
    with presave.open_store(tmp_path / "s") as store:
        for number in range(20):
            for name in ("features", "label"):
                stored, read = store[number][name], np.asarray(source[number][name])
                assert (stored.dtype, stored.shape) == (read.dtype, read.shape)
                assert stored.tobytes() == read.tobytes()


def test_a_pickled_source_reads_the_same(tmp_path: Path) -> None:
    for source in (etl.Sequences(flat(tmp_path)), etl.Sequences.from_arrays(arrays(), [0, 1, 2])):
        copy = pickle.loads(pickle.dumps(source))
        assert copy[2]["features"].tobytes() == source[2]["features"].tobytes()
        assert copy.lengths.tolist() == source.lengths.tolist()


def test_the_command_stores_labels_of_steps(tmp_path: Path) -> None:
    root = write(tmp_path / "sequences", s1="a,y\n1,on\n2,off\n", s2="a,y\n,on\n")
    call = ["presave", str(root), str(tmp_path / "s"), "--label", "y", "--missing", "0", "--classes", "off", "on"]
    assert main(call) == 0
    with presave.open_store(tmp_path / "s") as store:
        assert [values.tolist() for values in store.gather([0, 1])["label"]] == [[1, 0], [1]]
        assert store[1]["features"].tolist() == [[0]]


def test_a_part_of_them_is_padded_and_stored_as_the_whole_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    root = write(tmp_path / "sequences", s1="a,y\n1,0\n2,1\n3,1\n", s2="a,y\n4,0\n", s3="a,y\n5,1\n6,0\n")
    part = torch.utils.data.Subset(etl.Sequences(root, label="y"), [2, 0])
    file = tmp_path / "part.toml"
    Configuration(str(root), "raw", table_options={"label": "y"}, batch_size=2, shuffle=False).write(file)
    by_hand = etl.RawIterator(part, etl.Pipeline([]), 2, padding=Padding())
    for iterator in (by_hand, etl.from_config(file, source=part)):
        (batch,) = iterator
        assert batch.features.tolist() == [[[5], [6], [0]], [[1], [2], [3]]]
        assert batch.labels.tolist() == [[1, 0, 0], [0, 1, 1]]
    with presave.write(tmp_path / "s", etl.records(part, etl.Pipeline([]))) as store:
        assert [values.tolist() for values in store.gather([0, 1])["label"]] == [[1, 0], [0, 1, 1]]
    code = f"""
        import etl, torch
        def part():
            return torch.utils.data.Subset(etl.Sequences({str(root)!r}, label="y"), [2, 0])
    """
    with user_module(tmp_path, "my_part", code):
        assert etl.records(etl.open_source("my_part:part"), etl.Pipeline([])).ragged == {"features", "label"}
