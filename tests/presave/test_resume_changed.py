"""An interrupted write is not resumed over other records than it began with, and the error says what differs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave

COUNT, SHARD_RECORDS = 60, 10
SETTINGS: dict[str, Any] = {"shard_nbytes": SHARD_RECORDS * 16}


def _records(**changed: int) -> list[dict[str, Any]]:
    """Return records of 16 bytes; `r7=3` gives record 7 the value 3."""
    return [{"x": index, "y": changed.get(f"r{index}", index)} for index in range(COUNT)]


class Read:
    """Records that cannot be seen as a list."""

    def __init__(self, records: list[dict[str, Any]], broken: int | None = None, **attributes: Any) -> None:
        self._records = records
        self.broken = broken
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.broken:
            raise OSError("the disk is on fire")
        return self._records[index]


def _stop(_: presave.Progress) -> None:
    raise KeyboardInterrupt


def _interrupt(target: Path, records: Any, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        presave.write(target, records, progress=_stop, **{**SETTINGS, **settings})


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("changed", [0, 4, SHARD_RECORDS - 1])
def test_a_list_that_has_changed_in_a_complete_shard_is_refused(changed: int, jobs: int, tmp_path: Path) -> None:
    _interrupt(tmp_path / "s", _records(), jobs=jobs)
    complete = {int(path.name[:5]) for path in (tmp_path / ".s.partial").glob("*.done.json")}
    first = min(complete) * SHARD_RECORDS
    with pytest.raises(presave.StoreError, match=rf"record {first}, or one of the 9 after it, has changed.*delete"):
        presave.write(tmp_path / "s", _records(**{f"r{first + changed}": -1}), **SETTINGS)
    with presave.write(tmp_path / "s", _records(), jobs=jobs, **SETTINGS) as store:
        assert store.gather(range(COUNT))["y"].tolist() == list(range(COUNT))


def test_records_that_were_skipped_are_not_compared(tmp_path: Path) -> None:
    records = [*_records()]
    records[1] = {"x": "no number"}
    _interrupt(tmp_path / "s", records, on_error="skip")
    with presave.write(tmp_path / "s", records, on_error="skip", **SETTINGS) as store:
        assert len(store) == COUNT - 1


@pytest.mark.parametrize("first_complete", [0, 1], ids=["first shard", "second shard"])
def test_other_records_are_refused_if_the_first_that_is_compared_has_changed(
    first_complete: int, tmp_path: Path
) -> None:
    _interrupt(tmp_path / "s", Read(_records()))
    if first_complete:
        with pytest.raises(OSError, match="fire"):
            presave.write(tmp_path / "s", Read(_records(), broken=25), **SETTINGS)
        (tmp_path / ".s.partial" / "00000.done.json").unlink()
    changed = _records(**{f"r{first_complete * SHARD_RECORDS}": -1})
    with pytest.raises(presave.StoreError, match="has changed since"):
        presave.write(tmp_path / "s", Read(changed), **SETTINGS)
    assert not (tmp_path / "s").exists()


def test_random_records_are_resumed(tmp_path: Path) -> None:
    class Random(Read):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": index, "y": random.random()}

    _interrupt(tmp_path / "s", Random([]))
    presave.write(tmp_path / "s", Random([]), **SETTINGS).close()


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({"a.csv": 11, "b.csv": 2}, "a.csv was 10 and is 11"),
        ({"a.csv": 10}, "b.csv is gone"),
        ({"a.csv": 10, "b.csv": 2, "c.csv": 3}, "c.csv is new"),
        ({"b.csv": 2, "a.csv": 10}, "their order"),
        ({}, "a.csv is gone; b.csv is gone"),
    ],
    ids=str,
)
def test_records_of_another_identity_are_refused_and_the_error_names_the_difference(
    now: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    before = {"a.csv": 10, "b.csv": 2}
    _interrupt(tmp_path / "s", Read(_records(), identity=before))
    with pytest.raises(presave.StoreError, match=difference):
        presave.write(tmp_path / "s", Read(_records(), identity=now), **SETTINGS)
    presave.write(tmp_path / "s", Read(_records(), identity=before), **SETTINGS).close()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_records_that_change_during_the_write_give_no_store(tmp_path: Path) -> None:
    class Growing(Read):
        size = 1

        @property
        def identity(self) -> dict[str, int]:
            return {"log.csv": self.size}

    records = Growing(_records())

    def grow(_: presave.Progress) -> None:
        records.size = 2

    with pytest.raises(presave.StoreError, match=r"log.csv was 1 and is 2; delete .*\.s\.partial"):
        presave.write(tmp_path / "s", records, progress=grow, **SETTINGS)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("identity", [3, ["a"], {"a": np.zeros(1)}], ids=str)
def test_an_identity_that_is_no_mapping_to_json_is_refused(identity: Any, tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="identity of the records is not a mapping"):
        presave.write(tmp_path / "s", Read(_records(), identity=identity))


def _convert(folder: Path, **settings: Any) -> presave.Store:
    return presave.convert(folder / "a", folder / "b", format="hdf5", **{**SETTINGS, **settings})


@pytest.mark.parametrize("formats", [("npy", "npy"), ("npy", "safetensors"), ("pickle", "npy")])
def test_a_conversion_goes_on_only_over_a_store_with_the_same_records(formats: tuple[str, str], tmp_path: Path) -> None:
    before, after = formats
    presave.write(tmp_path / "a", _records(), format=before).close()
    with pytest.raises(KeyboardInterrupt):
        presave.convert(tmp_path / "a", tmp_path / "b", format="hdf5", trusted=True, progress=_stop, **SETTINGS)
    for records, is_same in ((_records(r33=-1), False), (_records(), True)):
        shutil.rmtree(tmp_path / "a")
        presave.write(tmp_path / "a", records, format=after, shard_nbytes=100).close()
        if not is_same:
            with pytest.raises(presave.StoreError, match=r"the content of the store was \w{32} and is \w{32}"):
                _convert(tmp_path, trusted=True)
    _convert(tmp_path, trusted=True).close()
    assert presave.verify(tmp_path / "b") == []


def _reordered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*records[1:], records[0]]


@pytest.mark.parametrize(
    ("change", "is_same"), [(lambda records: records, True), (_reordered, False)], ids=["same", "reordered"]
)
def test_the_content_of_a_store_follows_from_its_records_alone(
    change: Callable[[Any], Any], is_same: bool, tmp_path: Path
) -> None:
    with presave.write(tmp_path / "one", _records()) as store:
        content = store.manifest.content
    for name in ("npy", "hdf5", "pickle"):
        with presave.write(tmp_path / name, change(_records()), format=name, shard_nbytes=100, jobs=2) as store:
            assert (store.manifest.content == content) is is_same
