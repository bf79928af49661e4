"""With on_error="skip", records that fail are left out and listed, and all others are stored."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from tests.presave.records import NBYTES, Numbered, bytes_of

COUNT = 300
# Shards of 50 records, or of 128.
formats = pytest.mark.parametrize("name", ["npy", "pickle"])


def _spoiled(bad: Iterable[int]) -> Numbered:
    return Numbered(COUNT, {index: OSError(f"file {index} is gone") for index in bad})


def _write(target: Path, records: Numbered, name: str = "npy", **settings: Any) -> presave.Store:
    return presave.write(target, records, format=name, on_error="skip", shard_nbytes=50 * NBYTES, **settings)


@formats
@pytest.mark.parametrize(
    "bad",
    [{7}, {0, 1}, {COUNT - 1}, set(range(128)), set(range(256, 300)), {0, *range(50, 150), 299}, set(range(1, 300))],
    ids=["one", "first", "last", "first shards", "last shards", "shards in the middle", "all but the first"],
)
def test_bad_records_are_listed_with_index_and_cause_and_all_others_stored(
    name: str, bad: set[int], tmp_path: Path
) -> None:
    seen: list[presave.Progress] = []
    with _write(tmp_path / "s", _spoiled(bad), name, jobs=2, progress=seen.append) as store:
        good = [number for number in range(COUNT) if number not in bad]
        assert store.gather(range(len(good)))["y"].tolist() == good
        listed = [(each.record, each.cause) for each in store.manifest.skipped]
        assert listed == [(number, f"OSError: file {number} is gone") for number in sorted(bad)]
    assert (seen[-1].records, seen[-1].skipped, seen[-1].total) == (len(good), len(bad), COUNT)
    assert presave.verify(tmp_path / "s") == []


def test_a_record_unlike_the_first_is_skipped_with_the_reason(tmp_path: Path) -> None:
    class Unlike(Numbered):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {**super().__getitem__(index), **({"x": np.zeros(2, int)} if index == 40 else {})}

    with _write(tmp_path / "s", Unlike(COUNT)) as store:
        (skipped,) = store.manifest.skipped
        assert skipped.record == 40
        assert skipped.cause.startswith("StoreError: record 40: field 'x' is int64 of shape (2,); the first is")
        assert len(store) == COUNT - 1


@pytest.mark.parametrize("first", [None, {"x": "text", "y": 0}, {}, {"x": np.zeros((0, 3)), "y": 0}], ids=str)
def test_the_schema_is_not_inferred_from_a_first_record_that_cannot_be_stored(first: Any, tmp_path: Path) -> None:
    class OddFirst(Numbered):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return first if index == 0 else super().__getitem__(index)

    with _write(tmp_path / "s", OddFirst(COUNT)) as store:
        assert [each.record for each in store.manifest.skipped] == [0]
        assert store.gather([0, 298])["y"].tolist() == [1, 299]


def test_if_all_records_are_bad_there_is_no_store_and_the_error_names_the_first_cause(tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="all 300 records failed; the first: OSError: file 0 is gone"):
        _write(tmp_path / "s", _spoiled(range(COUNT)))
    assert not list(tmp_path.iterdir())


def test_records_that_turn_bad_after_the_schema_leave_nothing_to_later_writes(tmp_path: Path) -> None:
    class TurnsBad(Numbered):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if self.reads:
                raise OSError("unplugged")
            return super().__getitem__(index)

    with pytest.raises(presave.StoreError, match="all 300 records failed; the first: OSError: unplugged"):
        _write(tmp_path / "s", TurnsBad(COUNT))
    with _write(tmp_path / "s", Numbered(COUNT)) as store:
        assert len(store) == COUNT


@formats
@pytest.mark.parametrize("interrupt_at", [140, 299])
def test_an_interrupted_write_that_skips_gives_the_same_store(name: str, interrupt_at: int, tmp_path: Path) -> None:
    bad = {0, 49, 50, *range(100, 150), 290}
    records = _spoiled(bad)
    records.errors[interrupt_at] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "s", records, name)
    for target in ("s", "whole"):
        _write(tmp_path / target, _spoiled(bad), name).close()
    assert bytes_of(tmp_path / "s") == bytes_of(tmp_path / "whole")


def test_skipped_records_stay_listed_through_a_conversion(tmp_path: Path) -> None:
    _write(tmp_path / "s", _spoiled({3})).close()
    with presave.convert(tmp_path / "s", tmp_path / "t", format="hdf5") as store:
        assert store.manifest.provenance["skipped"] == [{"record": 3, "cause": "OSError: file 3 is gone"}]


MACHINE = [OSError(each, "no") for each in (errno.EMFILE, errno.EIO, errno.ENOSPC, errno.ESTALE)]


@pytest.mark.parametrize("ragged", [[], ["x"]])
@pytest.mark.parametrize("index", [0, 42, 123, 299])
def test_interrupts_and_what_is_no_fault_of_a_record_are_not_skipped_wherever_it_is_read(
    index: int, ragged: list[str], tmp_path: Path
) -> None:
    for error in (KeyboardInterrupt(), SystemExit(2), MemoryError("too large"), ImportError("no lz4"), *MACHINE):
        with pytest.raises(type(error)) as raised:
            _write(tmp_path / "s", Numbered(COUNT, {index: error}), ragged=ragged)
        assert raised.value is error
