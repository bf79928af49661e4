"""verify finds every change to a store's files, and names the file."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import presave

MANIFEST = "manifest.json"


@pytest.fixture(scope="module", params=presave.formats())
def store_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 3 shards or more, shared by the tests. A test that changes files uses `copy`."""
    folder = tmp_path_factory.mktemp("verify") / "s"
    records = [
        {"x": np.arange(6, dtype=np.int16) * i, "y/z": i, "ragged": np.ones((i % 2, 2), np.uint8)} for i in range(300)
    ]  # 20 to 22 bytes each
    presave.write(folder, records, format=request.param, ragged=["ragged"], shard_nbytes=21 * 100).close()
    return folder


@pytest.fixture
def copy(store_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(store_folder, tmp_path / "s")


@pytest.fixture(scope="module")
def changed_copy(store_folder: Path) -> Iterator[Path]:
    """A copy for property tests, which restore each file that they change."""
    with tempfile.TemporaryDirectory() as folder:
        yield shutil.copytree(store_folder, Path(folder) / "s")


def _data_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name != MANIFEST)


def test_a_whole_store_has_no_faults_and_every_byte_is_counted(store_folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert presave.verify(store_folder, lambda read, total: seen.append((read, total))) == []
    nbytes = sum(file.stat().st_size for file in _data_files(store_folder))
    assert seen[-1] == (nbytes, nbytes)
    assert seen == sorted(seen)


@settings(max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_or_a_cut_is_a_fault_that_names_the_file_and_reading_it_does_no_harm(
    changed_copy: Path, data: st.DataObject
) -> None:
    file = data.draw(st.sampled_from(sorted(changed_copy.iterdir())))
    content = file.read_bytes()
    place, is_flip = data.draw(st.integers(0, len(content) - 1)), data.draw(st.booleans())
    if is_flip:
        changed = bytearray(content)
        changed[place] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(changed)
    else:
        file.write_bytes(content[:place])
    try:
        if file.name == MANIFEST:
            with pytest.raises(presave.StoreError, match=r"manifest\.json: "):
                presave.verify(changed_copy)
            return
        (fault,) = presave.verify(changed_copy)
        assert fault.startswith(f"{file}: its bytes have changed" if is_flip else f"{file}: {place:,} bytes; ")
        # Unpickling a flipped bit may allocate any amount.
        if not (is_flip and file.suffix == ".pickle"):
            _read(changed_copy, file)
    finally:
        file.write_bytes(content)


def _read(folder: Path, file: Path) -> None:
    """Read a store whose `file` was changed: an error names it; a changed value is not an error here."""
    try:
        with warnings.catch_warnings(), presave.open_store(folder, trusted=True) as store:
            warnings.simplefilter("ignore")  # NumPy may mistake a damaged header for one of Python 2
            store.gather(range(len(store)))
            store.view(0, 50)
    except presave.StoreError as error:
        assert str(error).startswith(f"{file}: ") or "`etl verify` names the damaged file" in str(error)  # noqa: PT017


def test_all_faults_are_listed_missing_grown_and_extra(copy: Path) -> None:
    missing, grown, *_ = _data_files(copy)
    missing.unlink()
    size = grown.stat().st_size
    grown.write_bytes(grown.read_bytes() + b"\0")
    (copy / "notes.txt").write_text("mine")
    (copy / "sub").mkdir()
    assert presave.verify(copy) == [
        f"{missing}: missing",
        f"{grown}: {size + 1:,} bytes; the manifest says {size:,}",
        f"{copy / 'notes.txt'}: not in the manifest",
        f"{copy / 'sub'}: not in the manifest",
    ]
