"""With on_error="skip", records that fail are left out and listed, and all others are stored."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave

every_format = pytest.mark.parametrize("name", presave.formats())
COUNT = 300
SHARD_NBYTES = 16 * 50


class Spoiled:
    """300 records of 16 bytes; records in `bad` raise, and records in `unlike` have another shape."""

    thread_safe = True

    def __init__(self, bad: Iterable[int] = (), unlike: Iterable[int] = ()) -> None:
        self.bad = frozenset(bad)
        self.unlike = frozenset(unlike)
        self.interrupt_at: int | None = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.interrupt_at:
            raise KeyboardInterrupt
        if index in self.bad:
            raise OSError(f"file {index} is gone")
        return {"x": np.full(2 if index in self.unlike else 1, index), "y": index}


def _write(target: Path, records: Spoiled, name: str = "npy", **settings: Any) -> presave.Store:
    return presave.write(target, records, format=name, on_error="skip", shard_nbytes=SHARD_NBYTES, **settings)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@every_format
@pytest.mark.parametrize(
    "bad",
    [{7}, {0, 1}, {COUNT - 1}, set(range(128)), set(range(256, 300)), {0, *range(50, 150), 299}, set(range(1, 300))],
    ids=["one", "first", "last", "first shards", "last shards", "shards in the middle", "all but the first"],
)
def test_bad_records_are_listed_with_index_and_cause_and_all_others_stored(
    name: str, bad: set[int], tmp_path: Path
) -> None:
    seen: list[presave.Progress] = []
    with _write(tmp_path / "s", Spoiled(bad), name, jobs=2, progress=seen.append) as store:
        good = [number for number in range(COUNT) if number not in bad]
        assert store.gather(range(len(good)))["y"].tolist() == good
        listed = [(each.record, each.cause) for each in store.manifest.skipped]
        assert listed == [(number, f"OSError: file {number} is gone") for number in sorted(bad)]
    assert (seen[-1].records, seen[-1].skipped, seen[-1].total) == (len(good), len(bad), COUNT)
    assert presave.verify(tmp_path / "s") == []


def test_a_record_unlike_the_first_is_skipped_with_the_reason(tmp_path: Path) -> None:
    with _write(tmp_path / "s", Spoiled(unlike={40})) as store:
        (skipped,) = store.manifest.skipped
        assert skipped.record == 40
        assert skipped.cause.startswith("StoreError: record 40: field 'x' is int64 of shape (2,); the first is")
        assert len(store) == COUNT - 1


@pytest.mark.parametrize("first", [None, {"x": "text", "y": 0}, {}, {"x": np.zeros((0, 3)), "y": 0}], ids=str)
def test_the_schema_is_not_inferred_from_a_first_record_that_cannot_be_stored(first: Any, tmp_path: Path) -> None:
    class OddFirst(Spoiled):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return first if index == 0 else super().__getitem__(index)

    with _write(tmp_path / "s", OddFirst()) as store:
        assert [each.record for each in store.manifest.skipped] == [0]
        assert store.gather([0, 298])["y"].tolist() == [1, 299]


def test_if_all_records_are_bad_there_is_no_store_and_the_error_names_the_first_cause(tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="all 300 records failed; the first: OSError: file 0 is gone"):
        _write(tmp_path / "s", Spoiled(range(COUNT)))
    assert not list(tmp_path.iterdir())


def test_records_that_turn_bad_after_the_schema_leave_nothing_to_later_writes(tmp_path: Path) -> None:
    class TurnsBad(Spoiled):
        reads = 0

        def __getitem__(self, index: int) -> dict[str, Any]:
            self.reads += 1
            if self.reads > 1:
                raise OSError("unplugged")
            return super().__getitem__(index)

    with pytest.raises(presave.StoreError, match="all 300 records failed; the first: OSError: unplugged"):
        _write(tmp_path / "s", TurnsBad())
    with _write(tmp_path / "s", Spoiled()) as store:
        assert len(store) == COUNT


@every_format
@pytest.mark.parametrize("interrupt_at", [140, 299])
def test_an_interrupted_write_that_skips_gives_the_same_store(name: str, interrupt_at: int, tmp_path: Path) -> None:
    bad = {0, 49, 50, *range(100, 150), 290}
    records = Spoiled(bad)
    records.interrupt_at = interrupt_at
    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "s", records, name)
    records.interrupt_at = None
    _write(tmp_path / "s", records, name).close()
    _write(tmp_path / "whole", records, name).close()
    assert _bytes(tmp_path / "s") == _bytes(tmp_path / "whole")


def test_skipped_records_stay_listed_through_a_conversion(tmp_path: Path) -> None:
    _write(tmp_path / "s", Spoiled({3})).close()
    with presave.convert(tmp_path / "s", tmp_path / "t", format="hdf5") as store:
        assert store.manifest.provenance["skipped"] == [{"record": 3, "cause": "OSError: file 3 is gone"}]


@pytest.mark.parametrize("ragged", [[], ["x"]])
def test_interrupts_and_what_is_no_fault_of_a_record_are_not_skipped(ragged: list[str], tmp_path: Path) -> None:
    machine = [OSError(each, "no") for each in (errno.EMFILE, errno.EIO, errno.ENOSPC, errno.ESTALE)]
    for error in (KeyboardInterrupt(), SystemExit(2), MemoryError("too large"), ImportError("no lz4"), *machine):

        class Stops(Spoiled):
            error: BaseException = KeyboardInterrupt()

            def __getitem__(self, index: int) -> dict[str, Any]:
                if index == 123:
                    raise self.error
                return super().__getitem__(index)

        records = Stops()
        records.error = error
        with pytest.raises(type(error)):
            _write(tmp_path / "s", records, ragged=ragged)


def test_an_unknown_on_error_is_refused(tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="on_error must be 'raise' or 'skip', not 'ignore'"):
        presave.write(tmp_path / "s", Spoiled(), on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [0, 42, 123, 299])
def test_too_many_open_files_is_raised_wherever_a_record_is_read(index: int, tmp_path: Path) -> None:
    class Leaks(Spoiled):
        def __getitem__(self, number: int) -> dict[str, Any]:
            if number >= index:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().__getitem__(number)

    for ragged in ([], ["x"]):
        with pytest.raises(OSError, match="Too many open files"):
            _write(tmp_path / "s", Leaks(), ragged=ragged)
