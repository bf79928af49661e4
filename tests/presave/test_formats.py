"""Every format gives back the records that were written, bit for bit."""

from __future__ import annotations

import string
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import presave
from presave.shard_formats import FORMATS

DTYPES = ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8"]
LACKING = {"safetensors": ("<c16", "<f16"), "torch": ("<f16",)}
NAMES = ["a/b", "/", ".", "..", "ä", "two words", " ", "%2E", "%", "manifest.json", "A", "a", "\n", "\0", "💾", "~"]
Records = list[dict[str, np.ndarray]]

few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
every_format = pytest.mark.parametrize("name", presave.formats())


@st.composite
def record_lists(draw: st.DrawFn, more_dtypes: list[str]) -> Records:
    """Draw 1 to 30 records of 1 to 3 fields of any dtype and shape, filled with random bits."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    kinds = {
        name: (np.dtype(draw(st.sampled_from([*DTYPES, *more_dtypes]))), draw(stn.array_shapes(min_dims=0, max_side=5)))
        for name in names
    }
    count = draw(st.integers(1, 30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return [{name: _any_values(random, *kind) for name, kind in kinds.items()} for _ in range(count)]


@contextmanager
def _written(records: Records, name: str, shard_nbytes: int) -> Iterator[presave.Store]:
    with (
        tempfile.TemporaryDirectory() as folder,
        presave.write(Path(folder) / "s", records, format=name, shard_nbytes=shard_nbytes) as store,
    ):
        yield store


def _any_values(random: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), bool)
    # Any bits at all: infinities, NaN payloads and negative zeros must be kept, too.
    bits = random.bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(bits, dtype).reshape(shape)


def _same_bits(got: np.ndarray, wanted: list[np.ndarray]) -> bool:
    expected = np.stack([each.astype(each.dtype.newbyteorder("<")) for each in wanted])
    return got.dtype == expected.dtype and got.shape == expected.shape and got.tobytes() == expected.tobytes()


@every_format
@few
@given(data=st.data(), shard_nbytes=st.integers(1, 4000))
def test_gather_returns_the_bits_that_were_written_in_any_order_with_repeats(
    name: str, data: st.DataObject, shard_nbytes: int
) -> None:
    records = data.draw(record_lists([] if name == "safetensors" else ["<c16"]))
    order = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=40))
    with _written(records, name, shard_nbytes) as store:
        assert len(store) == len(records)
        gathered = store.gather(order)
        for field in records[0]:
            if order:
                assert _same_bits(gathered[field], [records[number][field] for number in order])
            else:
                assert gathered[field].shape == (0, *records[0][field].shape)
        assert all(_same_bits(store[len(records) - 1][f][None], [records[-1][f]]) for f in records[0])


@every_format
@few
@given(data=st.data(), record_nbytes=st.sampled_from([8, 4096, 5000, 70_000]))
def test_gather_writes_into_any_out_whether_or_not_it_is_contiguous(
    name: str, data: st.DataObject, record_nbytes: int
) -> None:
    # 8 bytes: many rows in a chunk. 70,000 bytes: larger than a chunk and than rows gathered by fancy index.
    records = [{"x": np.full((2, record_nbytes // 2), i, np.uint8), "label": i} for i in range(9)]
    order = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=12))
    with _written(records, name, 3 * record_nbytes + 24) as store:
        whole = np.zeros((len(order), 2, record_nbytes // 2), np.uint8)
        strided = np.zeros((2 * len(order), 2, record_nbytes // 2), np.uint8)
        turned = np.zeros((len(order), record_nbytes // 2, 2), np.uint8).transpose(0, 2, 1)
        for out in (whole, strided[::2], turned):
            returned = store.gather(order, {"x": out})
            assert returned["x"] is out
            assert returned.keys() == {"x"}
            assert out[:, 0, 0].tolist() == order
            assert out[:, 1, -1].tolist() == order
        assert not strided[1::2].any()


@every_format
@few
@given(
    field=st.text(
        alphabet=st.one_of(st.sampled_from("./%\\~ \0"), st.characters(codec="utf-8")), min_size=1, max_size=12
    )
)
def test_any_text_can_name_a_field(name: str, field: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with presave.write(Path(folder) / "s", [{field: 1, "other": 2.0}], format=name) as store:
            assert store[0] == {field: 1, "other": 2.0}
        assert [each.name for each in Path(folder).iterdir()] == ["s"]
        assert presave.verify(Path(folder) / "s") == []


@every_format
def test_names_that_differ_in_one_character_are_different_fields(name: str, tmp_path: Path) -> None:
    record = {field: number for number, field in enumerate([*NAMES, *string.punctuation.replace("%", "")])}
    with presave.write(tmp_path / "s", [record], format=name) as store:
        assert {field: int(value) for field, value in store[0].items()} == record


@every_format
@pytest.mark.parametrize(
    "field", ["x" * 201, "ä" * 40, "\ud800", "", 3], ids=["long", "long when quoted", "surrogate", "empty", "number"]
)
def test_a_field_name_that_cannot_be_stored_is_refused(name: str, field: object, tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="record 0: field name "):
        presave.write(tmp_path / "s", [{field: 1}], format=name)  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


@every_format
@pytest.mark.parametrize("shard_nbytes", [None, 48 * 40])
def test_equal_records_give_equal_files_with_any_number_of_jobs(
    name: str, shard_nbytes: int | None, tmp_path: Path
) -> None:
    records = [{"x": np.arange(5) * i, "label": i} for i in range(300)]  # 48 bytes each
    written = []
    for jobs in (1, 2, 5):
        folder = tmp_path / f"jobs-{jobs}"
        presave.write(folder, records, format=name, jobs=jobs, shard_nbytes=shard_nbytes).close()
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1] == written[2]


@every_format
def test_equal_records_give_equal_files_at_any_time(name: str, tmp_path: Path) -> None:
    # HDF5 stores times in seconds, so write in this second and in a later one.
    started, later, written = int(time.time()), False, []
    while not later:
        later = int(time.time()) > started
        folder = tmp_path / str(len(written))
        presave.write(folder, [{"x": 1}], format=name).close()
        written.append([file.read_bytes() for file in sorted(folder.iterdir())])
    assert all(each == written[0] for each in written)


@every_format
@few
@given(count=st.integers(1, 60), shard_nbytes=st.integers(1, 400))
def test_shards_hold_every_record_once_and_are_no_larger_than_asked(name: str, count: int, shard_nbytes: int) -> None:
    records = [{"x": np.full(2, i, np.int32), "y": i} for i in range(count)]  # 16 bytes each
    with _written(records, name, shard_nbytes) as store:
        held = [shard.records for shard in store.manifest.shards]
        assert sum(held) == count
        assert max(held) <= (FORMATS[name].shard_records or max(1, shard_nbytes // 16))
        assert store.gather(range(count))["y"].tolist() == list(range(count))


@every_format
def test_python_numbers_become_int64_and_float64_and_big_endian_arrays_little_endian(name: str, tmp_path: Path) -> None:
    record = {"i": 3, "f": 0.5, "b": True, "big": np.array([258], ">u2")}
    with presave.write(tmp_path / "s", [record], format=name) as store:
        assert {field.name: field.dtype for field in store.fields.values()} == {
            "i": "<i8",
            "f": "<f8",
            "b": "|b1",
            "big": "<u2",
        }
        assert store[0]["big"].tolist() == [258]


def test_an_unknown_format_raises_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="unknown format 'zip'; known: npy, hdf5"):
        presave.write(tmp_path / "s", [{"x": 1}], format="zip")


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, dtypes in LACKING.items() for dtype in dtypes])
def test_an_unsupported_dtype_raises_an_error_that_names_the_field_and_another_format(
    name: str, dtype: str, tmp_path: Path
) -> None:
    with pytest.raises(presave.StoreError, match=f"format '{name}' has no .*, the dtype of column 'x'; use 'npy'"):
        presave.write(tmp_path / "s", [{"label": 1, "x": np.zeros(3, dtype)}], format=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(set(presave.formats()) - {"hdf5"}))
def test_an_unknown_option_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match=f"format '{name}' has no option compression"):
        presave.write(tmp_path / "s", [{"x": 1}], format=name, options={"compression": "gzip"})
    assert not list(tmp_path.iterdir())
