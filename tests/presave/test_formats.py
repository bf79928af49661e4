"""Every format gives back the records that were written, bit for bit, in whatever way they are read."""

from __future__ import annotations

import ctypes
import math
import string
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import presave
from presave import mapped_rows
from presave.shard_formats import FORMATS
from presave.shard_formats.pickle import PickledShard
from tests.presave.records import NBYTES, Numbered, bytes_of

DTYPES = ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8"]
NAMES = ["a/b", "/", ".", "..", "ä", "two words", " ", "%2E", "%", "manifest.json", "A", "a", "\n", "\0", "💾", "~"]
RAGGED = ("ragged", "r/2")
Records = list[dict[str, np.ndarray]]

many, few = (settings(max_examples=count) for count in (20, 8))
every_format = pytest.mark.parametrize("name", presave.formats())
every_way = pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in presave.formats()), ("hdf5", {"compression": "gzip"})], ids=str
)


@st.composite
def record_lists(draw: st.DrawFn) -> Records:
    """Draw 1 to 30 records of fixed and ragged fields of any dtype and shape, filled with random bits.

    Values of ragged fields may be empty.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtypes = st.sampled_from(DTYPES).map(np.dtype)
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    fixed = {name: (draw(dtypes), draw(stn.array_shapes(min_dims=0, max_side=5))) for name in names}
    ragged = {name: (draw(dtypes), draw(st.integers(1, 3))) for name in RAGGED}
    longest = draw(st.integers(0, 6))
    return [
        {name: _any_values(random, dtype, shape) for name, (dtype, shape) in fixed.items()}
        | {
            name: _any_values(random, dtype, tuple(random.integers(0, longest + 1, axes)))
            for name, (dtype, axes) in ragged.items()
        }
        for _ in range(draw(st.integers(1, 30)))
    ]


@contextmanager
def _written(records: Any, name: str, shard_nbytes: int, **settings: Any) -> Iterator[presave.Store]:
    with (
        tempfile.TemporaryDirectory() as folder,
        presave.write(Path(folder) / "s", records, format=name, shard_nbytes=shard_nbytes, **settings) as store,
    ):
        yield store


def _any_values(random: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), bool)
    # Any bits at all: infinities, NaN payloads and negative zeros must be kept, too.
    bits = random.bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(bits, dtype).reshape(shape)


def _assert_same_bits(got: Any, wanted: list[np.ndarray], is_ragged: bool) -> None:
    if not is_ragged and wanted:
        got, wanted = [got], [np.stack(wanted)]
    for value, written in zip(got, wanted, strict=True):
        expected = written.astype(written.dtype.newbyteorder("<"))
        assert (value.dtype, value.shape, value.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def _columns(records: Records, indices: Any) -> dict[str, list[np.ndarray]]:
    return {name: [records[index][name] for index in indices] for name in records[0]}


@every_way
@many
@given(data=st.data(), records=record_lists(), shard_nbytes=st.integers(1, 4000))
def test_records_are_read_bit_for_bit_in_any_order_with_repeats(
    name: str, options: dict[str, str], data: st.DataObject, records: Records, shard_nbytes: int
) -> None:
    order = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=40))
    first = data.draw(st.integers(0, len(records)))
    last = data.draw(st.integers(first, len(records)))
    with _written(records, name, shard_nbytes, ragged=RAGGED, options=options) as store:
        assert len(store) == len(records)
        gathered, one, view = store.gather(order), store[len(records) - 1], store.view(first, last)
        for field, values in _columns(records, order).items():
            _assert_same_bits(gathered[field], values, field in RAGGED)
            assert len(gathered[field]) == len(order)
            assert [tuple(shape) for shape in store.shapes(field, order)] == [value.shape for value in values]
            _assert_same_bits([one[field]], [records[-1][field]], is_ragged=True)
            if field in RAGGED:
                assert store.elements(order)[field] == sum(value.size for value in values)
            else:
                _check_rows_by_shard(store, field, order, gathered[field])
                _check_row_addresses(store, field, order, gathered[field])
        for field, values in _columns(records, range(first, last)).items():
            _assert_same_bits(view[field], values, field in RAGGED)
            assert not any(each.flags.writeable for each in (view[field] if field in RAGGED else [view[field]]))


def _check_rows_by_shard(store: presave.Store, field: str, order: list[int], gathered: np.ndarray) -> None:
    out = np.zeros_like(gathered)
    for array, rows, slots in store.rows_by_shard(field, order):
        assert rows.dtype == slots.dtype == np.int64
        assert array.dtype == gathered.dtype
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        out[slots] = array[rows]
    assert out.tobytes() == gathered.tobytes()


def _check_row_addresses(store: presave.Store, field: str, order: list[int], gathered: np.ndarray) -> None:
    mapped_rows.COMPILED.wait()
    found = store.row_addresses(field, order)
    assert (found is not None) >= (store.manifest.format == "npy")
    if found is not None:
        addresses, _owner = found
        nbytes = gathered.itemsize * math.prod(gathered.shape[1:])
        rows = [ctypes.string_at(address, nbytes) for address in addresses.tolist()]
        assert b"".join(rows) == gathered.tobytes()


@every_way
@few
@given(data=st.data(), record_nbytes=st.sampled_from([8, 4096, 5000, 70_000]), more=st.integers(0, 5))
def test_gather_writes_into_any_out_whether_or_not_it_is_contiguous(
    name: str, options: dict[str, str], data: st.DataObject, record_nbytes: int, more: int
) -> None:
    # 8 bytes: many rows in a chunk. 70,000 bytes: larger than a chunk and than rows gathered by fancy index.
    records = [
        {"x": np.full((2, record_nbytes // 2), i, np.uint8), "label": i, "r": np.full((i % 3, 2), i)} for i in range(9)
    ]
    order = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=12))
    with _written(records, name, 3 * record_nbytes + 24, ragged=["r"], options=options) as store:
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
        needed = store.elements(order)["r"]
        for step in (1, 3):
            buffer = np.full(step * (needed + more), -1)[::step]
            values = store.gather(order, {"r": buffer})["r"]
            assert all((value == i).all() and len(value) == i % 3 for value, i in zip(values, order, strict=True))
            assert all(np.shares_memory(value, buffer) for value in values if value.size)
            assert (buffer[needed:] == -1).all()
            if needed:
                message = rf"out\['r'\] has room for {needed - 1:,} elements; these records have {needed:,}"
                with pytest.raises(presave.StoreError, match=message):
                    store.gather(order, {"r": buffer[: needed - 1]})


@every_way
def test_all_ragged_values_may_be_empty(name: str, options: dict[str, str]) -> None:
    records = [{"x/y": np.zeros((0, 4), np.int16), "z": np.zeros(0)} for _ in range(5)]
    with _written(records, name, 16, ragged=["x/y", "z"], options=options) as store:
        assert store.elements(range(5)) == {"x/y": 0, "z": 0}
        assert [each.shape for each in store.gather([4, 0])["x/y"]] == [(0, 4), (0, 4)]
        assert [each.shape for each in store.view(0, 5)["z"]] == [(0,)] * 5


@pytest.mark.parametrize("through", presave.formats())
@few
@given(data=st.data(), records=record_lists(), shard_nbytes=st.integers(50, 4000))
def test_converting_to_any_format_keeps_the_records_and_back_again_the_bytes(
    through: str, data: st.DataObject, records: Records, shard_nbytes: int
) -> None:
    name = data.draw(st.sampled_from(presave.formats()))
    with _written(records, name, shard_nbytes, ragged=RAGGED) as store:
        folder = store.path.parent
        settings = {"trusted": True, "shard_nbytes": shard_nbytes, "jobs": 2}
        with presave.convert(store.path, folder / "there", format=through, **settings) as there:
            gathered = there.gather(range(len(records)))
            for field, values in _columns(records, range(len(records))).items():
                _assert_same_bits(gathered[field], values, field in RAGGED)
            assert there.fields == store.fields
        presave.convert(folder / "there", folder / "back", format=name, **settings).close()
        assert bytes_of(folder / "back") == bytes_of(store.path)


def test_a_conversion_reads_each_pickled_shard_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presave.write(tmp_path / "s", Numbered(512), format="pickle").close()
    reads: list[PickledShard] = []
    read = PickledShard.columns

    def counted(shard: PickledShard) -> Any:
        reads.append(shard)
        return read(shard)

    monkeypatch.setattr(PickledShard, "columns", counted)
    settings: dict[str, Any] = {"jobs": 2, "shard_nbytes": 128 * NBYTES, "trusted": True}
    with presave.convert(tmp_path / "s", tmp_path / "t", format="npy", **settings) as store:
        assert store.gather(range(512))["y"].tolist() == list(range(512))
    assert len(reads) == len(store.manifest.shards) == 4


def test_a_conversion_keeps_what_is_said_of_the_records(tmp_path: Path) -> None:
    said = {"stage": "resize", "fingerprint": "0123456789abcdef", "provenance": {"classes": ["cat", "dog"]}}
    presave.write(tmp_path / "s", Numbered(9, **said)).close()
    with presave.convert(tmp_path / "s", tmp_path / "t", format="hdf5") as store:
        assert store.manifest.format == "hdf5"
        assert {name: getattr(store.manifest, name) for name in said} == said


def test_a_damaged_source_leaves_no_target(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", Numbered(9)).close()
    damaged = tmp_path / "s" / "y-00000.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(presave.StoreError, match=r"y-00000\.npy: is not int64 of shape"):
        presave.convert(tmp_path / "s", tmp_path / "t", format="hdf5")
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_converting_a_store_onto_itself_is_refused_and_does_no_damage(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", Numbered(9)).close()
    with pytest.raises(presave.StoreError, match="s exists already"):
        presave.convert(tmp_path / "s", tmp_path / "s", format="hdf5")
    assert presave.verify(tmp_path / "s") == []


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
@pytest.mark.parametrize("shard_nbytes", [None, 40 * NBYTES])
def test_equal_records_give_equal_files_with_any_number_of_jobs(
    name: str, shard_nbytes: int | None, tmp_path: Path
) -> None:
    written = []
    for jobs in (1, 2, 5):
        folder = tmp_path / f"jobs-{jobs}"
        presave.write(folder, Numbered(300), format=name, jobs=jobs, shard_nbytes=shard_nbytes).close()
        written.append(bytes_of(folder))
    assert written[0] == written[1] == written[2]


def test_equal_records_give_equal_files_at_any_time(tmp_path: Path) -> None:
    # HDF5 stores times in seconds, and zip files in two, so write at this time and at a later one.
    written = {}
    started = time.time() // 2
    for when in ("now", "later"):
        while when == "later" and time.time() // 2 == started:
            time.sleep(0.02)
        for name in presave.formats():
            presave.write(tmp_path / when / name, [{"x": 1}], format=name).close()
            written[when, name] = bytes_of(tmp_path / when / name)
    assert all(written["now", name] == written["later", name] for name in presave.formats())


@every_format
@few
@given(count=st.integers(1, 25), shard_nbytes=st.integers(1, 600))
def test_shards_hold_every_record_once_and_are_no_larger_than_asked(name: str, count: int, shard_nbytes: int) -> None:
    with _written(Numbered(count), name, shard_nbytes) as store:
        held = [shard.records for shard in store.manifest.shards]
        assert sum(held) == count
        assert max(held) <= (FORMATS[name].shard_records or max(1, shard_nbytes // NBYTES))
        assert store.gather(range(count))["y"].tolist() == list(range(count))


@every_format
def test_python_numbers_become_int64_and_float64_and_big_endian_arrays_little_endian(name: str, tmp_path: Path) -> None:
    record = {"i": 3, "f": 0.5, "b": True, "big": np.array([258], ">u2")}
    dtypes = {"i": "<i8", "f": "<f8", "b": "|b1", "big": "<u2"}
    if name != "safetensors":  # which has no complex128
        record |= {"z": np.array([1 - 2j])}
        dtypes |= {"z": "<c16"}
    with presave.write(tmp_path / "s", [record], format=name) as store:
        assert {field.name: field.dtype for field in store.fields.values()} == dtypes
        assert {field: value.tolist() for field, value in store[0].items()} == {
            field: np.asarray(value).tolist() for field, value in record.items()
        }


def test_one_name_makes_all_its_numbered_fields_ragged_except_scalars(tmp_path: Path) -> None:
    records = [{"x.0": np.zeros(length), "x.1": np.zeros((length, 2)), "x.2": 0.5, "x.y": 1} for length in (1, 3)]
    with presave.write(tmp_path / "s", records, ragged=["x"]) as store:
        assert [name for name, field in store.fields.items() if field.is_ragged] == ["x.0", "x.1"]
        assert store.shapes("x.1", [1, 0]).tolist() == [[3, 2], [1, 2]]


def test_the_argument_ragged_overrides_the_attribute_of_the_records(tmp_path: Path) -> None:
    class Said(list):
        ragged = frozenset({"x"})

    records = Said({"x": np.zeros(size)} for size in (2, 3))
    with presave.write(tmp_path / "s", records) as store:
        assert store.fields["x"] == presave.Field("x", "<f8", (None,))
    with pytest.raises(presave.StoreError, match="record 1: field 'x' is float64 of shape"):
        presave.write(tmp_path / "t", records, ragged=[])


def test_a_store_and_a_part_of_one_are_stored_with_the_fields_that_are_ragged_there(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    with presave.write(tmp_path / "s", [{"x": np.zeros(size)} for size in range(5)], ragged=["x"]) as store:
        presave.write(tmp_path / "all", store).close()
        assert bytes_of(tmp_path / "all") == bytes_of(tmp_path / "s")
        part = data.Subset(data.Subset(store, [4, 3, 0]), [0, 2])
        # Whatever has not the shape of the first record would be left out.
        with presave.write(tmp_path / "part", part, on_error="skip") as written:
            assert [len(record["x"]) for record in written] == [4, 0]
