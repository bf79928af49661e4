"""Reading an open store: indices, threads, processes, memory, and closing."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import presave

COUNT = 140
RECORDS = [{"x": np.full((3, 5), i, np.int16), "label": i} for i in range(COUNT)]
LIMIT_SECONDS = 60


@pytest.fixture(params=presave.formats())
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of several shards, also in formats with a fixed number of records in a shard."""
    presave.write(tmp_path / "s", RECORDS, format=request.param, shard_nbytes=38 * 50).close()
    return tmp_path / "s"


def test_a_store_is_a_sequence_with_negative_indices(folder: Path) -> None:
    with presave.open_store(folder, trusted=True) as store:
        assert len(store) == COUNT
        assert store[3]["label"] == store[np.int32(3)]["label"] == store[3 - COUNT]["label"] == 3
        assert store[-1]["label"] == COUNT - 1
        assert [int(record["label"]) for record in store] == list(range(COUNT))


def test_files_that_are_none_of_its_own_are_no_records(folder: Path) -> None:
    for name in ("stray.npy", "shard-99999.npy", "notes.txt", ".DS_Store"):
        (folder / name).write_bytes(b"not a record")
    with presave.open_store(folder, trusted=True) as store:
        assert len(store) == COUNT
        assert [int(record["label"]) for record in store] == list(range(COUNT))


@pytest.mark.parametrize("index", [COUNT, -COUNT - 1, 10**18])
def test_a_record_that_does_not_exist_raises_an_index_error_with_the_length(index: int, folder: Path) -> None:
    with (
        presave.open_store(folder, trusted=True) as store,
        pytest.raises(IndexError, match=f"record {index} of .*holds {COUNT}"),
    ):
        store[index]


@pytest.mark.parametrize("index", [1.5, "x", None, slice(2), np.array([1, 2])], ids=str)
def test_an_index_that_is_not_an_integer_raises_a_type_error(index: Any, folder: Path) -> None:
    with presave.open_store(folder, trusted=True) as store, pytest.raises(TypeError):
        store[index]


@pytest.mark.parametrize("indices", [[0, COUNT], [0, -1], np.array([2**63], np.uint64)], ids=str)
def test_gather_refuses_records_that_do_not_exist_before_it_writes_any(indices: Any, folder: Path) -> None:
    out = np.full(len(indices), 77)
    with presave.open_store(folder, trusted=True) as store, pytest.raises(IndexError, match=f"holds {COUNT}"):
        store.gather(indices, {"label": out})
    assert (out == 77).all()


@pytest.mark.parametrize("indices", [[0.5], [True, False], [[0, 1]], 3, ["x"]], ids=str)
def test_gather_refuses_masks_and_everything_else_but_integers_with_one_axis(indices: Any, folder: Path) -> None:
    with (
        presave.open_store(folder, trusted=True) as store,
        pytest.raises(TypeError, match="indices must be integers with one axis"),
    ):
        store.gather(indices)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"y": np.zeros(2)}, "has no field 'y'; it has x, label"),
        ({"label": np.zeros(3, np.int64)}, r"out\['label'\] is int64 of shape \(3,\); .* needs int64 of shape \(2,\)"),
        ({"label": np.zeros(2, np.int32)}, r"out\['label'\] is int32 .* needs int64"),
        ({"label": np.frombuffer(bytes(16), np.int64)}, r"out\['label'\] is read-only"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: dict[str, np.ndarray], message: str, folder: Path) -> None:
    with presave.open_store(folder, trusted=True) as store, pytest.raises(presave.StoreError, match=message):
        store.gather([0, 1], out)


@pytest.mark.parametrize("cache", [None, "ram"])
def test_a_closed_store_raises_and_closing_twice_does_nothing(cache: Any, folder: Path) -> None:
    store = presave.open_store(folder, cache=cache, trusted=True)
    store.gather([0])
    store.close()
    store.close()
    with pytest.raises(presave.StoreError, match="s is closed"):
        store.gather([0])
    assert len(store) == COUNT


def test_gathered_arrays_outlive_the_store(folder: Path) -> None:
    with presave.open_store(folder, trusted=True) as store:
        gathered = store.gather(range(COUNT))
    shutil.rmtree(folder)
    assert (gathered["x"][:, 0, 0] == range(COUNT)).all()
    gathered["x"][:] = 0  # and the caller may write to them


def test_no_file_is_open_after_close(folder: Path) -> None:
    # A map of an .npy file is closed with its last array, an HDF5 file with its last handle.
    process = psutil.Process()
    with presave.open_store(folder, trusted=True) as store:
        store.gather(range(COUNT))
        held = {file.path for file in process.open_files()} | {each.path for each in process.memory_maps()}
        reads_whole_files = store.manifest.format == "pickle"
        assert any(path.startswith(str(folder)) for path in held) != reads_whole_files
    held = {file.path for file in process.open_files()} | {each.path for each in process.memory_maps()}
    assert not [path for path in held if path.startswith(str(folder))]


def test_several_threads_can_gather_at_once(folder: Path) -> None:
    orders = [np.random.default_rng(seed).integers(0, COUNT, 200) for seed in range(40)]
    with presave.open_store(folder, trusted=True) as store, ThreadPoolExecutor(8) as pool:
        for order, gathered in zip(orders, pool.map(store.gather, orders, timeout=LIMIT_SECONDS), strict=True):
            assert (gathered["label"] == order).all()
            assert (gathered["x"] == order[:, None, None]).all()


@pytest.mark.parametrize("cache", [None, "ram"])
def test_a_pickled_store_reads_the_same_in_another_process(cache: Any, folder: Path) -> None:
    with presave.open_store(folder, cache=cache, trusted=True) as store:
        store.gather([0])
        pickled = pickle.dumps(store)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).gather([7, 3])['label'].tolist())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickled, capture_output=True, check=True, timeout=LIMIT_SECONDS
    )
    assert done.stdout == b"[7, 3]\n"
    assert len(pickled) < 1000


FORKS = """
import os, sys, numpy as np, presave
store = presave.open_store(sys.argv[1], trusted=True)
order = np.random.default_rng(0).permutation(len(store))
store.gather(order[:5])
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        same = all((store.gather(order)["x"][:, 0, 0] == order).all() for _ in range(50))
        os._exit(0 if same else 1)
    children.append(child)
same = all((store.gather(order)["x"][:, 0, 0] == order).all() for _ in range(50))
assert same
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_store_in_use_reads_the_same_in_forked_processes(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKS, str(folder)], check=True, timeout=LIMIT_SECONDS)


def test_a_store_in_memory_no_longer_needs_its_files(folder: Path) -> None:
    order = [5, COUNT - 1, 5, 0]
    out = np.zeros((4, 3, 5), np.int16)
    with presave.open_store(folder, trusted=True) as store:
        expected = store.gather(order)
    with presave.open_store(folder, cache="ram", trusted=True) as store:
        shutil.rmtree(folder)
        gathered = store.gather(order)
        assert store.gather(order, {"x": out})["x"] is out
    for field, values in expected.items():
        np.testing.assert_array_equal(gathered[field], values, strict=True)
    np.testing.assert_array_equal(out, expected["x"], strict=True)


def test_a_store_that_does_not_fit_into_memory_raises_an_error_with_its_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = COUNT * (3 * 5 * 2 + 8)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed))
    presave.open_store(folder, cache="ram", trusted=True).close()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    said = rf"s needs {needed:,} bytes for cache='ram' and {needed - 1:,} bytes are free; use cache=None"
    with pytest.raises(MemoryError, match=said):
        presave.open_store(folder, cache="ram", trusted=True)


def test_an_unknown_cache_is_refused(folder: Path) -> None:
    with pytest.raises(presave.StoreError, match="cache must be None or 'ram', not 'disk'"):
        presave.open_store(folder, cache="disk", trusted=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["empty", "missing", "of another shard"])
def test_a_damaged_file_is_named_when_it_is_read(damage: str, folder: Path) -> None:
    last = sorted(file for file in folder.iterdir() if file.name.startswith(("shard-", "batch-", "x-")))[-1]
    if damage == "empty":
        last.write_bytes(b"")
    elif damage == "missing":
        last.unlink()
    else:  # the last shard has fewer records than the first
        shutil.copy(last.with_name(last.name.replace(last.stem[-5:], "00000")), last)
    with presave.open_store(folder, trusted=True) as store:
        assert store[0]["label"] == 0
        with pytest.raises(presave.StoreError) as raised:
            store.gather(range(COUNT))
    assert str(raised.value).startswith(f"{last}: ")
