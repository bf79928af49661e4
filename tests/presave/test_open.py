"""The arguments of open_store: verify compares every byte first, and memory_budget limits memory."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import presave

RECORDS = [{"x": np.arange(4) + number, "r": np.arange(number)} for number in range(300)]
# The values of both fields, and the end of each ragged value.
NEEDED_NBYTES = 300 * 4 * 8 + sum(range(300)) * 8 + 300 * 8


@pytest.fixture(params=presave.formats())
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    presave.write(tmp_path / "s", RECORDS, format=request.param, ragged=["r"], shard_nbytes=100_000).close()
    return tmp_path / "s"


def _flip_the_last_bit(folder: Path) -> Path:
    file = max((each for each in folder.iterdir() if each.name != "manifest.json"), key=lambda each: each.name)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return file


def test_one_flipped_bit_is_refused_with_verify_only(folder: Path) -> None:
    presave.open_store(folder, verify=True, trusted=True).close()
    file = _flip_the_last_bit(folder)
    with pytest.raises(presave.StoreError) as raised:
        presave.open_store(folder, verify=True, trusted=True)
    assert str(raised.value).startswith(f"{folder} has 1 faults: {file}: its bytes have changed")
    presave.open_store(folder, trusted=True).close()


def test_verify_counts_all_faults_and_names_the_first(folder: Path) -> None:
    for name in "abcde":
        (folder / f"zz-{name}").touch()
    with pytest.raises(presave.StoreError) as raised:
        presave.open_store(folder, verify=True, trusted=True)
    assert "has 5 faults: " in str(raised.value)
    assert "zz-a: not in the manifest" in str(raised.value)
    assert str(raised.value).endswith("; ...")


def test_verify_runs_before_the_store_is_read_into_memory(folder: Path) -> None:
    _flip_the_last_bit(folder)
    with pytest.raises(presave.StoreError, match="has 1 faults"):
        presave.open_store(folder, "ram", verify=True, trusted=True, memory_budget=0)


def test_a_memory_budget_is_exact_to_the_byte(folder: Path) -> None:
    presave.open_store(folder, "ram", trusted=True, memory_budget=NEEDED_NBYTES).close()
    said = rf"s needs {NEEDED_NBYTES:,} bytes for cache='ram' and {NEEDED_NBYTES - 1:,} bytes are its memory_budget"
    with pytest.raises(MemoryError, match=said):
        presave.open_store(folder, "ram", trusted=True, memory_budget=NEEDED_NBYTES - 1)


def test_a_memory_budget_without_a_cache_is_refused(folder: Path) -> None:
    with pytest.raises(presave.StoreError, match="memory_budget is for cache='ram'"):
        presave.open_store(folder, trusted=True, memory_budget=1 << 30)


def test_an_unpickled_store_keeps_its_memory_budget(folder: Path, tmp_path: Path) -> None:
    with presave.open_store(folder, "ram", trusted=True, memory_budget=2 * NEEDED_NBYTES) as store:
        pickled = pickle.dumps(store)
    shutil.rmtree(folder)
    larger = [{"x": np.arange(4), "r": np.arange(1000)} for _ in range(300)]
    presave.write(folder, larger, ragged=["r"]).close()
    with pytest.raises(MemoryError, match="are its memory_budget"):
        pickle.loads(pickled)
