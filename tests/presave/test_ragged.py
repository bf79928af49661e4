"""Ragged fields: values of any size are read back bit for bit, from every format and in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import presave

DTYPES = ["?", "u1", "<i2", ">i4", "<u8", "<f2", ">f8", "<c8"]
WAYS: list[tuple[str, dict[str, str]]] = [
    *((name, {}) for name in presave.formats()),
    ("hdf5", {"compression": "gzip"}),
]
Records = list[dict[str, Any]]

few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
every_way = pytest.mark.parametrize(("name", "options"), WAYS, ids=lambda way: str(way) if way else "")


@st.composite
def ragged_records(draw: st.DrawFn) -> Records:
    """Draw 1 to 20 records with two ragged fields, whose values may be empty, between two fixed fields."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = {name: (np.dtype(draw(st.sampled_from(DTYPES))), draw(st.integers(1, 3))) for name in ("x/y", "z")}
    longest = draw(st.integers(1, 6))
    count = draw(st.integers(1, 20))
    return [
        {"label": i}
        | {
            name: _values(random, dtype, tuple(random.integers(0, longest + 1, axes)))
            for name, (dtype, axes) in kinds.items()
        }
        | {"fixed": np.full(3, i, np.float32)}
        for i in range(count)
    ]


def _values(random: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), bool)
    return np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


@contextmanager
def _written(records: Records, name: str, options: dict[str, str], shard_nbytes: int) -> Iterator[presave.Store]:
    with (
        tempfile.TemporaryDirectory() as folder,
        presave.write(
            Path(folder) / "s",
            records,
            format=name,
            options=options,
            shard_nbytes=shard_nbytes,
            ragged=["z", "x/y"],
        ) as store,
    ):
        yield store


def _same(got: np.ndarray, wanted: np.ndarray) -> bool:
    expected = wanted.astype(wanted.dtype.newbyteorder("<"))
    return got.dtype == expected.dtype and got.shape == expected.shape and got.tobytes() == expected.tobytes()


@every_way
@few
@given(data=st.data(), records=ragged_records(), shard_nbytes=st.integers(1, 1000))
def test_gather_returns_the_values_that_were_written_in_any_order_with_repeats(
    name: str, options: dict[str, str], data: st.DataObject, records: Records, shard_nbytes: int
) -> None:
    order = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=30))
    with _written(records, name, options, shard_nbytes) as store:
        gathered = store.gather(order)
        assert gathered["label"].tolist() == order
        assert gathered["fixed"].shape == (len(order), 3)
        for field in ("x/y", "z"):
            assert len(gathered[field]) == len(order)
            assert all(_same(got, records[i][field]) for got, i in zip(gathered[field], order, strict=True))
            assert [tuple(shape) for shape in store.shapes(field, order)] == [records[i][field].shape for i in order]
            assert _same(store[len(records) - 1][field], records[-1][field])


@every_way
@few
@given(data=st.data(), records=ragged_records(), more=st.integers(0, 5), step=st.integers(1, 3))
def test_gather_fills_a_buffer_of_elements_and_returns_views_of_it(
    name: str, options: dict[str, str], data: st.DataObject, records: Records, more: int, step: int
) -> None:
    order = data.draw(st.lists(st.integers(0, len(records) - 1), min_size=1, max_size=30))
    with _written(records, name, options, 300) as store:
        needed = store.elements(order)["z"]
        assert needed == sum(records[number]["z"].size for number in order)
        buffer = np.zeros(step * (needed + more), store.fields["z"].dtype)[::step]
        gathered = store.gather(order, {"z": buffer})
        assert gathered.keys() == {"z"}
        assert all(_same(got, records[i]["z"]) for got, i in zip(gathered["z"], order, strict=True))
        assert all(np.shares_memory(got, buffer) for got in gathered["z"] if got.size)
        assert not buffer[needed:].any()
        if needed:
            with pytest.raises(presave.StoreError, match=rf"out\['z'\] has room for {needed - 1:,} elements; these "):
                store.gather(order, {"z": buffer[: needed - 1]})


@every_way
@few
@given(data=st.data(), records=ragged_records(), shard_nbytes=st.integers(1, 1000))
def test_a_view_holds_the_records_of_its_range_read_only(
    name: str, options: dict[str, str], data: st.DataObject, records: Records, shard_nbytes: int
) -> None:
    first = data.draw(st.integers(0, len(records)))
    last = data.draw(st.integers(first, len(records)))
    with _written(records, name, options, shard_nbytes) as store:
        view = store.view(first, last)
        assert view["label"].tolist() == list(range(first, last))
        for field in ("x/y", "z"):
            shown = view[field]
            wanted = [record[field] for record in records[first:last]]
            assert all(_same(got, value) for got, value in zip(shown, wanted, strict=True))
            assert not any(values.flags.writeable for values in shown)
        assert not view["fixed"].flags.writeable


@every_way
def test_all_values_may_be_empty(name: str, options: dict[str, str]) -> None:
    records = [{"x/y": np.zeros((0, 4), np.int16), "z": np.zeros(0)} for _ in range(5)]
    with _written(records, name, options, 16) as store:
        assert store.elements(range(5)) == {"x/y": 0, "z": 0}
        assert [each.shape for each in store.gather([4, 0])["x/y"]] == [(0, 4), (0, 4)]
        assert [each.shape for each in store.view(0, 5)["z"]] == [(0,)] * 5


@pytest.mark.parametrize("through", presave.formats())
@few
@given(data=st.data(), records=ragged_records(), shard_nbytes=st.integers(1, 1000))
def test_converting_to_any_format_keeps_ragged_values_and_back_again_the_bytes(
    through: str, data: st.DataObject, records: Records, shard_nbytes: int
) -> None:
    name = data.draw(st.sampled_from(presave.formats()))
    with _written(records, name, {}, shard_nbytes) as store:
        folder = store.path.parent
        settings = {"trusted": True, "shard_nbytes": shard_nbytes}
        with presave.convert(store.path, folder / "there", format=through, **settings) as there:
            for number, record in enumerate(there):
                assert all(_same(record[field], np.asarray(value)) for field, value in records[number].items())
            assert there.fields == store.fields
        presave.convert(folder / "there", folder / "back", format=name, **settings).close()
        assert _bytes(folder / "back") == _bytes(store.path)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"z": np.zeros((9, 1))}, r"out\['z'\] is float64 of shape \(9, 1\); .* needs float64 of a single axis"),
        ({"z": np.zeros(9, np.float32)}, r"out\['z'\] is float32 .* needs float64"),
        ({"z": np.zeros(())}, r"out\['z'\] is float64 of shape \(\)"),
        ({"z": np.frombuffer(bytes(72))}, r"out\['z'\] is read-only"),
    ],
)
def test_a_buffer_of_another_dtype_or_shape_is_refused(out: dict[str, np.ndarray], message: str) -> None:
    records = [{"x/y": np.zeros(2), "z": np.zeros((1, size))} for size in range(3)]
    with _written(records, "npy", {}, 100) as store, pytest.raises(presave.StoreError, match=message):
        store.gather([0], out)


def test_shapes_of_a_fixed_field_are_equal_and_of_an_unknown_field_raise(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", [{"x": np.zeros((2, 3)), "y": 1}] * 4) as store:
        assert store.shapes("x", [3, 0]).tolist() == [[2, 3], [2, 3]]
        assert store.shapes("y", [1, 2]).shape == (2, 0)
        with pytest.raises(presave.StoreError, match="has no field 'z'; it has x, y"):
            store.shapes("z", [0])
        with pytest.raises(IndexError, match="record 4 of"):
            store.shapes("x", [4])
    with pytest.raises(presave.StoreError, match="is closed"):
        store.shapes("x", [0])


def test_one_name_makes_all_its_numbered_fields_ragged_except_scalars(tmp_path: Path) -> None:
    records = [{"x.0": np.zeros(length), "x.1": np.zeros((length, 2)), "x.2": 0.5, "x.y": 1} for length in (1, 3)]
    with presave.write(tmp_path / "s", records, ragged=["x"]) as store:
        assert [name for name, field in store.fields.items() if field.is_ragged] == ["x.0", "x.1"]
        assert store.shapes("x.1", [1, 0]).tolist() == [[3, 2], [1, 2]]
    with pytest.raises(presave.StoreError, match="ragged contains 'x', which record 0 does not have"):
        presave.write(tmp_path / "t", [{"x.y": np.zeros(1)}], ragged=["x"])


def test_the_argument_ragged_overrides_the_attribute_of_the_records(tmp_path: Path) -> None:
    class Said(list):
        ragged = frozenset({"x"})

    records = Said({"x": np.zeros(size)} for size in (2, 3))
    with presave.write(tmp_path / "s", records) as store:
        assert store.fields["x"] == presave.Field("x", "<f8", (None,))
    with pytest.raises(presave.StoreError, match="record 1: field 'x' is float64 of shape"):
        presave.write(tmp_path / "t", records, ragged=[])
