"""An interrupted write is not resumed over other records than it began with, and the error says what differs."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import presave
from tests.presave.records import FIRE, NBYTES, Numbered, bytes_of, interrupt

COUNT, SHARD_RECORDS = 60, 10
SETTINGS: dict[str, Any] = {"shard_nbytes": SHARD_RECORDS * NBYTES}


class Changed(Numbered):
    """Records that are not what they were at the indices of `changed`."""

    def __init__(self, *changed: int, **attributes: Any) -> None:
        super().__init__(**{"count": COUNT, **attributes})
        self.changed = changed

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = super().__getitem__(index)
        return {**record, "y": -1} if index in self.changed else record


def _interrupt(target: Path, records: Any, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        presave.write(target, records, progress=interrupt, **{**SETTINGS, **settings})


DESCRIBED: dict[str, Any] = {"stage": "resize", "fingerprint": "0123", "provenance": {"source": "a/", "size": 8}}
OTHER_PLANS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "format": ({}, {"format": "hdf5"}, "format was 'npy' and is 'hdf5'"),
    "options": (
        {},
        {"format": "hdf5", "options": {"compression": "lzf"}},
        "format was 'npy' and is 'hdf5'; in options, compression is new",
    ),
    "shards": ({}, {"shard_nbytes": 20 * NBYTES}, "shard_records was 10 and is 20"),
    "errors": ({}, {"on_error": "skip"}, "on_error was 'raise' and is 'skip'"),
    "number": ({"count": 61}, {}, "records was 60 and is 61"),
    "fields": ({"ragged": ["x"]}, {}, "in fields, x was int64 [4] and is int64 [*]"),
    "stage": ({"stage": "decode"}, {}, "stage was 'resize' and is 'decode'"),
    "fingerprint": ({"fingerprint": "4567"}, {}, "fingerprint was '0123' and is '4567'"),
    "provenance": ({"provenance": {"source": "/data/a", "size": 8}}, {}, "in provenance, source was a/ and is /data/a"),
    "order": ({"provenance": {"size": 8, "source": "a/"}}, {}, "in provenance, their order"),
}


@pytest.mark.parametrize(("attributes", "settings", "difference"), OTHER_PLANS.values(), ids=OTHER_PLANS)
def test_the_beginning_of_another_store_is_kept_and_the_error_names_the_difference(
    attributes: dict[str, Any], settings: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    _interrupt(tmp_path / "s", Changed(**DESCRIBED))
    before = bytes_of(tmp_path / ".s.partial")
    with pytest.raises(presave.StoreError) as raised:
        presave.write(tmp_path / "s", Changed(**{**DESCRIBED, **attributes}), **{**SETTINGS, **settings})
    assert f".s.partial holds the beginning of another store of that name: {difference}; " in str(raised.value)
    assert bytes_of(tmp_path / ".s.partial") == before
    presave.write(tmp_path / "s", Changed(**DESCRIBED), **SETTINGS).close()


def test_the_error_for_another_source_is_short_though_there_are_many_classes(tmp_path: Path) -> None:
    before, now = (
        {"source": source, "classes": [f"{source} {number}" for number in range(1_000)]} for source in ("a", "b")
    )
    _interrupt(tmp_path / "s", Changed(provenance=before))
    with pytest.raises(presave.StoreError, match=r"source was a and is b; classes was .*; delete") as raised:
        presave.write(tmp_path / "s", Changed(provenance=now), **SETTINGS)
    assert len(str(raised.value)) < 1_500


@pytest.mark.parametrize("plan", [b"", b"[]", b"\xff", b"{"], ids=repr)
def test_a_damaged_plan_is_refused(plan: bytes, tmp_path: Path) -> None:
    _interrupt(tmp_path / "s", Changed())
    (tmp_path / ".s.partial" / "plan.json").write_bytes(plan)
    with pytest.raises(presave.StoreError, match=r"its plan\.json is damaged; delete that folder, or"):
        presave.write(tmp_path / "s", Changed(), **SETTINGS)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("changed", [0, 4, SHARD_RECORDS - 1])
def test_a_list_that_has_changed_in_a_complete_shard_is_refused(changed: int, jobs: int, tmp_path: Path) -> None:
    _interrupt(tmp_path / "s", [*Changed()], jobs=jobs)
    complete = {int(path.name[:5]) for path in (tmp_path / ".s.partial").glob("*.done.json")}
    first = min(complete) * SHARD_RECORDS
    with pytest.raises(presave.StoreError, match=rf"record {first}, or one of the 9 after it, has changed.*delete"):
        presave.write(tmp_path / "s", [*Changed(first + changed)], **SETTINGS)
    with presave.write(tmp_path / "s", [*Changed()], jobs=jobs, **SETTINGS) as store:
        assert store.gather(range(COUNT))["y"].tolist() == list(range(COUNT))


def test_records_that_were_skipped_are_not_compared(tmp_path: Path) -> None:
    records: list[Any] = [*Changed()]
    records[1] = {"x": "no number"}
    _interrupt(tmp_path / "s", records, on_error="skip")
    with presave.write(tmp_path / "s", records, on_error="skip", **SETTINGS) as store:
        assert len(store) == COUNT - 1


@pytest.mark.parametrize("first_complete", [0, 1], ids=["first shard", "second shard"])
def test_other_records_are_refused_if_the_first_that_is_compared_has_changed(
    first_complete: int, tmp_path: Path
) -> None:
    _interrupt(tmp_path / "s", Changed())
    if first_complete:
        with pytest.raises(OSError, match="fire"):
            presave.write(tmp_path / "s", Changed(errors={25: FIRE}), **SETTINGS)
        (tmp_path / ".s.partial" / "00000.done.json").unlink()
    with pytest.raises(presave.StoreError, match="has changed since"):
        presave.write(tmp_path / "s", Changed(first_complete * SHARD_RECORDS), **SETTINGS)
    assert not (tmp_path / "s").exists()


def test_random_records_are_resumed(tmp_path: Path) -> None:
    class Random(Changed):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {**super().__getitem__(index), "y": random.random()}

    _interrupt(tmp_path / "s", Random())
    presave.write(tmp_path / "s", Random(), **SETTINGS).close()


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
    _interrupt(tmp_path / "s", Changed(identity=before))
    with pytest.raises(presave.StoreError, match=difference):
        presave.write(tmp_path / "s", Changed(identity=now), **SETTINGS)
    presave.write(tmp_path / "s", Changed(identity=before), **SETTINGS).close()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("was_known", [True, False])
def test_records_that_say_what_they_are_read_from_are_not_taken_for_others(was_known: bool, tmp_path: Path) -> None:
    saying, silent = Changed(origin=lambda index: f"{index}.csv"), Changed()
    _interrupt(tmp_path / "s", saying if was_known else silent)
    before, now = ("0.csv", "something that is not known")[:: 1 if was_known else -1]
    with pytest.raises(presave.StoreError, match=f"record 0 was read from {before}, and now it is {now}; delete"):
        presave.write(tmp_path / "s", silent if was_known else saying, **SETTINGS)


def _named(name: str, **attributes: Any) -> Changed:
    return Changed(origin=lambda index: f"{name}/{index}.csv", thread_safe=True, **attributes)


def test_records_that_are_read_from_something_else_and_are_the_same_are_read_again_once(tmp_path: Path) -> None:
    _interrupt(tmp_path / "s", _named("a"))
    records = _named("b")
    presave.write(tmp_path / "s", records, **SETTINGS).close()
    assert sorted(records.reads) == [0, *range(COUNT)]


@pytest.mark.parametrize("is_repaired", [True, False])
def test_records_that_are_read_from_something_else_are_left_out_as_before(is_repaired: bool, tmp_path: Path) -> None:
    errors = {3: ValueError("damaged")}
    _interrupt(tmp_path / "s", _named("a", errors=errors), on_error="skip")
    if is_repaired:
        message = r"record 3 was left out \(ValueError: damaged\), and would now be stored; delete"
        with pytest.raises(presave.StoreError, match=message):
            presave.write(tmp_path / "s", _named("b"), on_error="skip", **SETTINGS)
    else:
        with presave.write(tmp_path / "s", _named("b", errors=errors), on_error="skip", **SETTINGS) as store:
            assert [each.record for each in store.manifest.skipped] == [3]


def test_a_record_that_was_stored_and_can_no_longer_be_read_is_named(tmp_path: Path) -> None:
    _interrupt(tmp_path / "s", _named("a"), on_error="skip")
    message = r"record 4 was stored, and would now be left out \(OSError: the disk is on fire\); delete"
    with pytest.raises(presave.StoreError, match=message):
        presave.write(tmp_path / "s", _named("b", errors={4: FIRE}), on_error="skip", **SETTINGS)


def test_a_damaged_copy_of_what_was_read_is_an_error_of_its_record_and_costs_no_shard(tmp_path: Path) -> None:
    _interrupt(tmp_path / "s", _named("a"))
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", _named("b", errors={4: FIRE}), **SETTINGS)
    seen: list[presave.Progress] = []
    presave.write(tmp_path / "s", _named("b"), progress=seen.append, **SETTINGS).close()
    assert seen[-1].resumed >= SHARD_RECORDS


def test_shards_are_read_again_by_as_many_threads_as_there_are_jobs(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=60)

    class Meeting(Changed):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index in (5, 5 + SHARD_RECORDS):
                both.wait()
            return super().__getitem__(index)

    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", _named("a", errors={2 * SHARD_RECORDS: FIRE}), **SETTINGS)
    records = Meeting(origin=lambda index: f"b/{index}.csv", thread_safe=True)
    presave.write(tmp_path / "s", records, jobs=2, **SETTINGS).close()
    assert sorted(records.reads) == [0, *range(COUNT)]


def test_an_origin_that_is_no_method_is_none_of_the_records(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", Changed(origin=(0.0, 1.5))) as store:
        assert len(store) == COUNT


def test_records_that_change_during_the_write_give_no_store(tmp_path: Path) -> None:
    class Growing(Changed):
        size = 1

        @property
        def identity(self) -> dict[str, int]:
            return {"log.csv": self.size}

    records = Growing()

    def grow(_: presave.Progress) -> None:
        records.size = 2

    with pytest.raises(presave.StoreError, match=r"log.csv was 1 and is 2; delete .*\.s\.partial"):
        presave.write(tmp_path / "s", records, progress=grow, **SETTINGS)
    assert not (tmp_path / "s").exists()


def _convert(folder: Path, **settings: Any) -> presave.Store:
    return presave.convert(folder / "a", folder / "b", format="hdf5", **{**SETTINGS, **settings})


@pytest.mark.parametrize("formats", [("npy", "npy"), ("npy", "safetensors"), ("pickle", "npy")])
def test_a_conversion_goes_on_only_over_a_store_with_the_same_records(formats: tuple[str, str], tmp_path: Path) -> None:
    before, after = formats
    presave.write(tmp_path / "a", Changed(), format=before).close()
    with pytest.raises(KeyboardInterrupt):
        presave.convert(tmp_path / "a", tmp_path / "b", format="hdf5", trusted=True, progress=interrupt, **SETTINGS)
    for records, is_same in ((Changed(33), False), (Changed(), True)):
        shutil.rmtree(tmp_path / "a")
        presave.write(tmp_path / "a", records, format=after, shard_nbytes=100).close()
        if not is_same:
            with pytest.raises(presave.StoreError, match=r"the content of the store was \w{32} and is \w{32}"):
                _convert(tmp_path, trusted=True)
    _convert(tmp_path, trusted=True).close()
    assert presave.verify(tmp_path / "b") == []


@pytest.mark.parametrize("is_same", [True, False], ids=["same", "reordered"])
def test_the_content_of_a_store_follows_from_its_records_alone(is_same: bool, tmp_path: Path) -> None:
    first, *others = [*Changed()]
    with presave.write(tmp_path / "one", [first, *others]) as store:
        content = store.manifest.content
    records = [first, *others] if is_same else [*others, first]
    for name in ("npy", "hdf5", "pickle"):
        with presave.write(tmp_path / name, records, format=name, shard_nbytes=250, jobs=2) as store:
            assert (store.manifest.content == content) is is_same
