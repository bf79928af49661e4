"""Records and arguments of which no store can be made are refused; the error names the record and the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from tests.presave.records import Numbered

LACKING = {"safetensors": ("<c16", "<f16"), "torch": ("<f16",)}
GOOD = {"x": np.zeros((2, 3), np.uint8), "y": 1}
OTHERS = {
    "another shape": (
        {"x": np.zeros((3, 2), np.uint8)},
        r"'x' is uint8 of shape \(3, 2\); the first is uint8 \[2, 3\]",
    ),
    "another dtype": ({"x": np.zeros((2, 3), np.int8)}, "'x' is int8 .* the first is uint8"),
    "a float": ({"y": 1.0}, r"'y' is float64 of shape \(\); the first is int64"),
    "an axis": ({"y": np.array([1])}, r"'y' is int64 of shape \(1,\)"),
    "no array": ({"x": [[1], [2, 3]]}, "'x' is not an array"),
}
RECORDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    **{
        name: ([GOOD, {**GOOD, **change}], {}, f"record 1: field {message}")
        for name, (change, message) in OTHERS.items()
    },
    "a field less": ([GOOD, {"x": GOOD["x"]}], {}, r"record 1 has fields \['x'\]; the first has \['x', 'y'\]"),
    "a field more": ([GOOD, {**GOOD, 3: 1}], {}, r"record 1 has fields \['x', 'y', 3\]; the first has"),
    "no mapping": ([GOOD, None], {}, "record 1 is NoneType; the first is a mapping"),
    "objects": ([{"x": object()}], {}, "record 0: field 'x' has dtype object, which cannot be stored"),
    "text": ([{"x": "text"}], {}, "record 0: field 'x' has dtype <U4, which cannot be stored"),
    "dates": ([{"x": np.datetime64("2020-01-01")}], {}, r"dtype datetime64\[D\], which cannot be stored"),
    "no elements": ([{"x": np.zeros((3, 0))}], {}, r"record 0: field 'x' has shape \(3, 0\), which has no elements"),
    "rows of other lengths": ([{"x": [[1], [2, 3]]}], {}, "record 0: field 'x' is not an array"),
    "no fields": ([{}], {}, "record 0 is dict; a record is a mapping"),
    "a list": ([[1, 2]], {}, "record 0 is list; a record is a mapping"),
    "a long name": ([{"x" * 201: 1}], {}, "record 0: field name "),
    "a name that is long when quoted": ([{"ä" * 40: 1}], {}, "record 0: field name "),
    "a name that is no text": ([{"\ud800": 1}], {}, "record 0: field name "),
    "an empty name": ([{"": 1}], {}, "record 0: field name "),
    "a number for a name": ([{3: 1}], {}, "record 0: field name "),
    **{
        f"{dtype} in {name}": (
            [{"y": 1, "x": np.zeros(3, dtype)}],
            {"format": name},
            f"format '{name}' has no {np.dtype(dtype)}, the dtype of column 'x'; use 'npy'",
        )
        for name, dtypes in LACKING.items()
        for dtype in dtypes
    },
    "an unknown ragged field": ([GOOD], {"ragged": ["z", "x"]}, "ragged contains 'z', which record 0 does not have"),
    "a ragged group without numbers": ([{"x.y": np.zeros(1)}], {"ragged": ["x"]}, "ragged contains 'x', which record"),
    "a ragged scalar": ([GOOD], {"ragged": ["y"]}, "record 0: field 'y' is a scalar, which cannot be ragged"),
    "ragged values of fewer axes": (
        [GOOD, {**GOOD, "x": np.zeros(3, np.uint8)}],
        {"ragged": ["x"]},
        r"record 1: field 'x' is uint8 of shape \(3,\); .*\[\*, \*\]",
    ),
    "ragged values of another dtype": (
        [GOOD, {**GOOD, "x": np.zeros((1, 1))}],
        {"ragged": ["x"]},
        "record 1: field 'x' is float64 of shape",
    ),
    "a field that is not ragged": (
        [GOOD, {**GOOD, "y": np.zeros(2, int)}],
        {"ragged": ["x"]},
        r"record 1: field 'y' is int64 of shape \(2,\)",
    ),
    "ragged text": ([{"x": np.array(["text"])}], {"ragged": ["x"]}, "record 0: field 'x' has dtype <U4, which cannot"),
    "masked elements": (
        [GOOD, {**GOOD, "x": np.ma.masked_less(GOOD["x"], 1)}],
        {},
        r"record 1: field 'x' has masked elements, .* fill them, as in value\.filled",
    ),
    "a masked number": ([{**GOOD, "y": np.ma.masked}], {}, "record 0: field 'y' has masked elements"),
}
LAYOUTS = "unknown compression .*; known: gzip, lzf, zstd"
ARGUMENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no records": (Numbered(0), {}, "there are no records to write to"),
    "a path": ("photos/", {}, "'photos/' is a path, not a sequence of records; open it first"),
    "a stream": (iter([{"x": 1}]), {}, "a list_iterator is not a sequence of records, .* such as a list"),
    "columns": ({"x": np.zeros(3), "y": 1}, {}, r"a dict is not a sequence of records, .* with len\(records\)"),
    "shards of nothing": (Numbered(1), {"shard_nbytes": 0}, "shard_nbytes must be at least 1, not 0"),
    "no jobs": (Numbered(1), {"jobs": 0}, "jobs must be at least 1"),
    "on_error": (Numbered(1), {"on_error": "ignore"}, "on_error must be 'raise' or 'skip', not 'ignore'"),
    "a string of names": (Numbered(1), {"ragged": "x"}, r"ragged is a collection of names, such as \['x'\]"),
    "format": (Numbered(1), {"format": "zip"}, "unknown format 'zip'; known: npy, hdf5"),
    **{
        f"compressed {name}": (
            Numbered(1),
            {"format": name, "options": {"compression": "gzip"}},
            f"format '{name}' has no option compression; it has none",
        )
        for name in sorted({*presave.formats()} - {"hdf5"})
    },
    "a level": (
        Numbered(1),
        {"format": "hdf5", "options": {"level": 9}},
        "format 'hdf5' has no option level; it has compression",
    ),
    **{
        f"compression {value}": (Numbered(1), {"format": "hdf5", "options": {"compression": value}}, LAYOUTS)
        for value in ("zip", "", 3, ["gzip"], True)
    },
    **{
        f"provenance {value}": (Numbered(1, provenance=value), {}, "the provenance of the records cannot be kept")
        for value in ({"mean": np.zeros(3)}, {("a", "b"): 1}, [1])
    },
    **{
        f"identity {value}": (Numbered(1, identity=value), {}, "the identity of the records cannot be kept")
        for value in (3, ["a"], {"a": np.zeros(1)})
    },
    "a stage that is no text": (Numbered(1, stage=3), {}, "the stage of the records is 3, which is not text"),
    "a fingerprint that is no text": (Numbered(1, fingerprint=[7]), {}, r"the fingerprint of the records is \[7\]"),
}
WRONG = {**RECORDS, **ARGUMENTS}


@pytest.mark.parametrize(("records", "arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_no_store_can_be_made_of_is_refused_and_nothing_is_left(
    records: Any, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(presave.StoreError, match=message):
        presave.write(tmp_path / "s", records, **arguments)
    assert not list(tmp_path.iterdir())
    assert not getattr(records, "reads", None)  # wrong arguments are found before a record is read


def test_a_home_folder_that_nothing_has_expanded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(presave.StoreError, match=r"for your home folder, pass os\.path\.expanduser\('~/stores/s'\)$"):
        presave.write("~/stores/s", Numbered(1))
    assert not list(tmp_path.iterdir())


def test_without_the_plugins_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(presave.StoreError, match=r"compression 'zstd' needs hdf5plugin: pip install"):
        presave.write(tmp_path / "s", Numbered(1), format="hdf5", options={"compression": "zstd"})


@pytest.mark.parametrize(
    "make",
    [lambda torch: torch.zeros(3, requires_grad=True), lambda torch: torch.zeros(3, dtype=torch.bfloat16)],
    ids=["requires grad", "bfloat16"],
)
def test_a_tensor_that_numpy_cannot_read_is_named(make: Callable[[Any], Any], tmp_path: Path) -> None:
    records = [GOOD, {**GOOD, "x": make(pytest.importorskip("torch"))}]
    with pytest.raises(presave.StoreError, match=r"record 1: field 'x' is not an array \(.*\); make it one, such as"):
        presave.write(tmp_path / "s", records)


@pytest.mark.parametrize("ragged", [(), ("x",)])
@pytest.mark.parametrize("value", [np.zeros(0, np.uint8), np.zeros((0, 3))], ids=["an axis less", "another dtype"])
def test_the_error_for_an_empty_value_does_not_advise_what_cannot_help(
    value: np.ndarray, ragged: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(presave.StoreError, match=r"one dtype and number of axes, as in np\.zeros") as raised:
        presave.write(tmp_path / "s", [GOOD, {**GOOD, "x": value}], ragged=ragged)
    assert "ragged=" not in str(raised.value)


def test_the_error_for_another_shape_names_the_argument_that_allows_it(tmp_path: Path) -> None:
    records = [GOOD, {**GOOD, "x": np.zeros((3, 2), np.uint8)}]
    with pytest.raises(presave.StoreError, match=r"pass ragged=\['x'\]"):
        presave.write(tmp_path / "s", records)
    with presave.write(tmp_path / "s", records, ragged=["x"]) as store:
        assert [values.shape for values in store.gather([1, 0])["x"]] == [(3, 2), (2, 3)]


def test_a_masked_array_without_masked_elements_is_an_array(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", [{"x": np.ma.masked_array([1.5, 2.5])}]) as store:
        assert store[0]["x"].tolist() == [1.5, 2.5]
