"""Reading an open store: indices, views, threads, processes, memory, and closing."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import presave
from tests.presave.records import flip
from tests.readers import open_files_below

COUNT = 140
RECORDS = [{"x": np.full((3, 5), i, np.int16), "label": i, "r": np.full((i % 4, 2), i, np.int16)} for i in range(COUNT)]
# Of its arrays: the values, and for each ragged value its end and shape.
NEEDED_NBYTES = sum(record["x"].nbytes + 8 + record["r"].nbytes + 8 + 2 * 8 for record in RECORDS)
LIMIT_SECONDS = 180


def _write(folder: Path, format: str) -> Path:
    """Write a store of several shards, also in formats with a fixed number of records in a shard."""
    presave.write(folder, RECORDS, format=format, ragged=["r"], shard_nbytes=60 * 50).close()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _write(tmp_path / "s", "npy")


@pytest.fixture
def npy(folder: Path) -> presave.Store:
    return presave.open_store(folder)


@pytest.fixture(params=presave.formats())
def any_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return _write(tmp_path / "s", request.param)


def test_a_store_is_a_sequence_with_negative_indices(npy: presave.Store) -> None:
    assert len(npy) == COUNT
    assert npy[3]["label"] == npy[np.int32(3)]["label"] == npy[3 - COUNT]["label"] == 3
    assert npy[-1]["label"] == COUNT - 1
    assert [int(record["label"]) for record in npy] == list(range(COUNT))


def test_files_that_are_none_of_its_own_are_no_records(any_folder: Path) -> None:
    for name in ("stray.npy", "shard-99999.npy", "notes.txt", ".DS_Store"):
        (any_folder / name).write_bytes(b"not a record")
    with presave.open_store(any_folder, trusted=True) as store:
        assert store.gather(range(len(store)))["label"].tolist() == list(range(COUNT))


WRONG: list[tuple[Callable[[presave.Store], object], type[Exception], str | None]] = [
    *(
        (lambda store, index=index: store[index], IndexError, f"record {index} of .*holds {COUNT}")
        for index in (COUNT, -COUNT - 1, 10**18)
    ),
    *((lambda store, index=index: store[index], TypeError, None) for index in (1.5, "x", None, slice(2), np.arange(2))),
    *(
        (lambda store, indices=indices: store.gather(indices), TypeError, "indices must be integers with one axis")
        for indices in ([0.5], [True, False], [[0, 1]], 3, ["x"])
    ),
    *(
        (lambda store, span=span: store.view(*span), IndexError, f"records {span[0]} to {span[1]} of .*holds {COUNT}")
        for span in ((-1, 3), (3, 2), (0, COUNT + 1), (COUNT + 1, COUNT + 1))
    ),
    *(
        (lambda store, out=out: store.gather([0, 1], out), presave.StoreError, message)
        for out, message in (
            ({"y": np.zeros(2)}, "has no field 'y'; it has x, label, r"),
            (
                {"label": np.zeros(3, np.int64)},
                r"out\['label'\] is int64 of shape \(3,\); .* needs int64 of shape \(2,\)",
            ),
            ({"label": np.zeros(2, np.int32)}, r"out\['label'\] is int32 .* needs int64"),
            ({"label": np.frombuffer(bytes(16), np.int64)}, r"out\['label'\] is read-only"),
            (
                {"r": np.zeros((9, 1), np.int16)},
                r"out\['r'\] is int16 of shape \(9, 1\); .* needs int16 of a single axis",
            ),
            ({"r": np.zeros(9, np.float32)}, r"out\['r'\] is float32 .* needs int16"),
            ({"r": np.zeros((), np.int16)}, r"out\['r'\] is int16 of shape \(\)"),
            ({"r": np.frombuffer(bytes(72), np.int16)}, r"out\['r'\] is read-only"),
        )
    ),
    (lambda store: store.elements([0, COUNT]), IndexError, f"record {COUNT} of"),
    (lambda store: store.shapes("x", [COUNT]), IndexError, f"record {COUNT} of"),
    (lambda store: store.shapes("z", [0]), presave.StoreError, "has no field 'z'; it has x, label, r"),
    *(
        (
            lambda store, field=field: store.rows_by_shard(field, [0]),
            presave.StoreError,
            f"has no fixed field '{field}'; it has x, label",
        )
        for field in ("r", "z")
    ),
    (lambda store: store.row_addresses("r", [0]), presave.StoreError, "has no fixed field 'r'; it has x, label"),
    (lambda store: store.row_addresses("x", [COUNT]), IndexError, f"record {COUNT} of"),
    # At the call, not when the first triple is asked for.
    (lambda store: store.rows_by_shard("x", [COUNT]), IndexError, f"record {COUNT} of"),
    (lambda store: store.rows_by_shard("x", np.array([True])), TypeError, "indices must be integers with one axis"),
]


@pytest.mark.parametrize(("read", "error", "message"), WRONG)
def test_what_does_not_exist_or_does_not_fit_is_refused(
    read: Callable[[presave.Store], object], error: type[Exception], message: str | None, npy: presave.Store
) -> None:
    with pytest.raises(error, match=message):
        read(npy)


@pytest.mark.parametrize("indices", [[0, COUNT], [0, -1], np.array([2**63], np.uint64)], ids=str)
def test_gather_refuses_records_that_do_not_exist_before_it_writes_any(indices: Any, npy: presave.Store) -> None:
    out = np.full(len(indices), 77)
    with pytest.raises(IndexError, match=f"holds {COUNT}"):
        npy.gather(indices, {"label": out})
    assert (out == 77).all()


@pytest.mark.parametrize("cache", [None, "ram"])
def test_a_closed_store_raises_and_closing_twice_does_nothing(cache: Any, any_folder: Path) -> None:
    store = presave.open_store(any_folder, cache=cache, trusted=True)
    store.gather([0])
    store.close()
    store.close()
    for read in (
        lambda: store.gather([0]),
        lambda: store.view(0, 1),
        lambda: store.shapes("x", [0]),
        lambda: store.rows_by_shard("x", [0]),
        lambda: store.row_addresses("x", [0]),
    ):
        with pytest.raises(presave.StoreError, match="s is closed"):
            read()
    assert len(store) == COUNT


def test_arrays_outlive_the_store_and_only_gathered_ones_can_be_written_to(any_folder: Path) -> None:
    with presave.open_store(any_folder, trusted=True) as store:
        gathered, view = store.gather(range(COUNT)), store.view(0, 4)
    shutil.rmtree(any_folder)
    assert (gathered["x"][:, 0, 0] == range(COUNT)).all()
    gathered["x"][:] = 0
    assert view["label"].tolist() == [0, 1, 2, 3]
    assert view["r"][2].tolist() == [[2, 2], [2, 2]]
    for array in (view["x"], view["r"][2]):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize("cache", [None, "ram"])
def test_parts_of_a_shard_are_shared_and_read_only(cache: Any, any_folder: Path) -> None:
    with presave.open_store(any_folder, cache=cache, trusted=True) as store:
        size = store.manifest.shards[0].records
        views = [store.view(0, size) for _ in range(2)]
        assert np.shares_memory(views[0]["x"], views[1]["x"])
        assert np.shares_memory(views[0]["r"][3], views[1]["r"][3])
        ((first, _, _),) = store.rows_by_shard("x", [0])
        ((again, rows, _),) = store.rows_by_shard("x", [1])
        assert np.shares_memory(first, again)
        assert (len(again), rows.tolist()) == (size, [1])
        with pytest.raises(ValueError, match="read-only"):
            again[0] = 9


def test_no_file_is_open_after_close(any_folder: Path) -> None:
    # A map of an .npy file is closed with its last array, an HDF5 file with its last handle.
    with presave.open_store(any_folder, trusted=True) as store:
        store.gather(range(COUNT))
        reads_whole_files = store.manifest.format == "pickle"
        assert bool(open_files_below(any_folder)) != reads_whole_files
    assert not open_files_below(any_folder)


def test_a_pickle_is_read_once_for_all_fields_of_a_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with presave.write(tmp_path / "s", [{"x": index, "y": index} for index in range(300)], format="pickle") as store:
        reads: list[int] = []
        columns = store._shards.columns

        def counted(shard: int) -> object:
            reads.append(shard)
            return columns(shard)

        monkeypatch.setattr(store._shards, "columns", counted)
        store.gather(range(len(store)))
        assert reads == [0, 1, 2]


def test_several_threads_can_gather_at_once(any_folder: Path) -> None:
    orders = [np.random.default_rng(seed).integers(0, COUNT, 200) for seed in range(20)]
    with presave.open_store(any_folder, trusted=True) as store, ThreadPoolExecutor(8) as pool:
        for order, gathered in zip(orders, pool.map(store.gather, orders, timeout=LIMIT_SECONDS), strict=True):
            assert (gathered["label"] == order).all()
            assert (gathered["x"] == order[:, None, None]).all()


OTHER_PROCESSES = """
import os, pickle, sys, numpy as np, presave
for store in pickle.load(sys.stdin.buffer):
    assert store.gather([7, 3])["label"].tolist() == [7, 3], store
    order = np.random.default_rng(0).permutation(len(store))
    def reads_the_same():
        return all((store.gather(order)["x"][:, 0, 0] == order).all() for _ in range(5))
    child = os.fork()
    if child == 0:
        os._exit(0 if reads_the_same() else 1)
    assert reads_the_same(), store
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, store
"""


def test_pickled_stores_read_the_same_in_another_process_and_in_its_forks(tmp_path: Path) -> None:
    stores = []
    for name in presave.formats():
        path = _write(tmp_path / name, name)
        stores += [presave.open_store(path, cache=cache, trusted=True) for cache in (None, "ram")]
    for store in stores:
        store.gather([0])
    pickled = pickle.dumps(stores)
    assert len(pickled) < 1000 * len(stores)
    command = [sys.executable, "-c", OTHER_PROCESSES]
    done = subprocess.run(command, input=pickled, capture_output=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr


def test_a_store_in_memory_no_longer_needs_its_files(any_folder: Path) -> None:
    order = [5, COUNT - 1, 5, 0]
    out = np.zeros((4, 3, 5), np.int16)
    with presave.open_store(any_folder, trusted=True) as store:
        expected = store.gather(order)
    with presave.open_store(any_folder, cache="ram", trusted=True) as store:
        shutil.rmtree(any_folder)
        gathered = store.gather(order)
        assert store.gather(order, {"x": out})["x"] is out
    for field in ("x", "label"):
        np.testing.assert_array_equal(gathered[field], expected[field], strict=True)
    for got, wanted in zip(gathered["r"], expected["r"], strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)
    np.testing.assert_array_equal(out, expected["x"], strict=True)


@pytest.mark.parametrize("is_budget", [False, True], ids=["free memory", "memory_budget"])
def test_a_store_that_does_not_fit_into_memory_raises_an_error_with_its_size(
    is_budget: bool, any_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preload(nbytes: int) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=nbytes))
        budget = nbytes if is_budget else None
        presave.open_store(any_folder, cache="ram", trusted=True, memory_budget=budget).close()

    preload(NEEDED_NBYTES)
    limit = "are its memory_budget" if is_budget else "are free; use cache=None"
    said = f"s needs {NEEDED_NBYTES:,} bytes for cache='ram' and {NEEDED_NBYTES - 1:,} bytes {limit}"
    with pytest.raises(MemoryError, match=said):
        preload(NEEDED_NBYTES - 1)


def test_a_store_at_a_relative_path_is_read_after_the_working_folder_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with presave.open_store(folder.name) as store:
        before = pickle.dumps(store)
        monkeypatch.chdir(folder)
        assert [each[3]["label"] for each in (store, *map(pickle.loads, (before, pickle.dumps(store))))] == [3, 3, 3]
        assert store.identity == {"the content of the store": store.manifest.content}
        assert str(store.path) == folder.name


def test_a_store_is_read_to_its_end_though_the_link_to_it_leads_to_another_meanwhile(tmp_path: Path) -> None:
    for name, first in [("old", 0), ("new", 100)]:
        presave.write(tmp_path / name, [{"x": first + number} for number in range(4)], shard_nbytes=8).close()
    link = tmp_path / "current"
    link.symlink_to("old")
    with presave.open_store(link) as store:
        assert store[0]["x"] == 0
        link.unlink()
        link.symlink_to("new")
        assert store.gather(range(4))["x"].tolist() == [0, 1, 2, 3]
        assert pickle.loads(pickle.dumps(store))[3]["x"] == 3
        assert store.identity == {"the content of the store": store.manifest.content}


def test_a_store_that_is_written_again_meanwhile_is_an_error_and_no_mixture(any_folder: Path) -> None:
    with presave.open_store(any_folder, trusted=True) as store:

        def write(records: list[dict[str, Any]]) -> None:
            shutil.rmtree(any_folder)
            presave.write(any_folder, records, format=store.manifest.format, ragged=["r"], shard_nbytes=60 * 50).close()

        assert store[0]["label"] == 0
        write(RECORDS)
        assert store[COUNT // 2]["label"] == COUNT // 2
        write([{**record, "label": -index} for index, record in enumerate(RECORDS)])
        with pytest.raises(presave.StoreError, match="was written again since it was opened; open it again"):
            store[COUNT - 1]
        shutil.rmtree(any_folder)
        with pytest.raises(presave.StoreError, match="does not exist"):
            store[COUNT - 1]


def test_an_unpickled_store_keeps_its_memory_budget(folder: Path) -> None:
    with presave.open_store(folder, "ram", memory_budget=2 * NEEDED_NBYTES) as store:
        pickled = pickle.dumps(store)
    shutil.rmtree(folder)
    presave.write(folder, [{"x": np.zeros(2 * NEEDED_NBYTES)}]).close()
    with pytest.raises(MemoryError, match="are its memory_budget"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache": "disk"}, "cache must be None or 'ram', not 'disk'"),
        ({"memory_budget": 1 << 30}, "memory_budget is for cache='ram'"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(presave.StoreError, match=message):
        presave.open_store(folder, **arguments)


@pytest.mark.parametrize("arguments", [{}, {"cache": "ram", "memory_budget": 0}], ids=["mapped", "ram"])
def test_one_flipped_bit_is_refused_with_verify_only_and_before_the_store_is_read(
    arguments: dict[str, Any], folder: Path
) -> None:
    presave.open_store(folder, verify=True).close()
    file = folder / "x-00001.npy"
    flip(file)
    with pytest.raises(presave.StoreError) as raised:
        presave.open_store(folder, verify=True, **arguments)
    assert str(raised.value).startswith(f"{folder} has 1 faults: {file}: its bytes have changed")
    presave.open_store(folder).close()


def test_verify_counts_all_faults_and_names_the_first(folder: Path) -> None:
    for name in "abcde":
        (folder / f"zz-{name}").touch()
    with pytest.raises(presave.StoreError, match=r"has 5 faults: .*zz-a: not in the manifest.*; \.\.\.$"):
        presave.open_store(folder, verify=True)


@pytest.mark.parametrize("damage", ["empty", "missing", "of another shard"])
def test_a_damaged_file_is_named_when_it_is_read(damage: str, any_folder: Path) -> None:
    last = sorted(file for file in any_folder.iterdir() if file.name.startswith(("shard-", "batch-", "x-")))[-1]
    if damage == "empty":
        last.write_bytes(b"")
    elif damage == "missing":
        last.unlink()
    else:  # the last shard has fewer records than the first
        shutil.copy(last.with_name(last.name.replace(last.stem[-5:], "00000")), last)
    with presave.open_store(any_folder, trusted=True) as store:
        assert store[0]["label"] == 0
        with pytest.raises(presave.StoreError) as raised:
            store.gather(range(COUNT))
    assert str(raised.value).startswith(f"{last}: ")
