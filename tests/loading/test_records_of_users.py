"""Records and sources as users write them: objects as labels, mappings that compute, attributes of any name."""

from __future__ import annotations

import argparse
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl.loading import Padding
from etl.loading.buffer_pool import MIN_NBYTES
from etl.sources import RecordError

NOTHING = etl.Pipeline([])


@pytest.mark.parametrize("padding", [None, Padding()])
def test_labels_that_are_objects_arrive_as_they_are(padding: Padding | None) -> None:
    records = [{"features": np.ones(2), "label": Fraction(number, 3)} for number in range(4)]
    (batch,) = etl.RawIterator(records, NOTHING, 4, padding=padding)
    assert batch.labels.dtype == object
    assert batch.labels.tolist() == [record["label"] for record in records]
    assert all(type(label) is Fraction for label in batch.labels)


def test_a_large_batch_of_objects_has_memory_of_its_own() -> None:
    count = MIN_NBYTES // 8
    records = [{"features": np.ones(2), "label": Fraction(number, 3)} for number in range(count)]
    (batch,) = etl.RawIterator(records, NOTHING, count)
    assert batch.labels[-1] == Fraction(count - 1, 3)


def test_objects_are_refused_where_worker_processes_would_have_to_share_them() -> None:
    records = [{"features": np.ones(2), "label": Fraction(number, 3)} for number in range(4)]
    with (
        etl.AsyncIterator(etl.RawIterator(records, NOTHING, 2), workers="process", processes=1) as iterator,
        pytest.raises(ValueError, match="a field of the records holds Python objects, which cannot be shared"),
    ):
        list(iterator)


class Lazy(Mapping[str, Any]):
    """A record whose fields are computed when they are asked for; one of them cannot be."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getitem__(self, name: str) -> Any:
        if name == "extra":
            raise OSError("extra is unreadable")
        return {"features": np.full(2, self._number, np.float32), "label": self._number}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("features", "label", "extra"))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("wrap", [lambda raw: raw, etl.AsyncIterator])
def test_fields_that_no_batch_has_are_not_computed(wrap: Callable[[Any], Any]) -> None:
    iterator = wrap(etl.RawIterator([Lazy(number) for number in range(4)], NOTHING, 2))
    assert [batch.labels.tolist() for batch in iterator] == [[0, 1], [2, 3]]
    assert "digests" not in iterator.state_dict()  # that would need all fields


class Archives:
    """An .npz file for each record, whose fields numpy reads when asked for; record 2's file is damaged."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / f"{number}.npz" for number in range(4)]
        for number, file in enumerate(self._files):
            np.savez(file, features=np.full(4, number, np.float32), label=np.int64(number))
        content = self._files[2].read_bytes()
        self._files[2].write_bytes(content.replace(np.full(4, 2, np.float32).tobytes(), bytes(16)))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return np.load(self._files[index])

    def describe(self, index: int) -> str:
        return self._files[index].name


@pytest.mark.parametrize("padding", [None, Padding()])
@pytest.mark.parametrize("wrap", [lambda raw: raw, etl.AsyncIterator])
def test_a_field_that_fails_when_it_is_asked_for_is_the_fault_of_its_record(
    wrap: Callable[[Any], Any], padding: Padding | None, tmp_path: Path
) -> None:
    archives = Archives(tmp_path)
    with pytest.raises(RecordError, match=r"record 2 of Archives \(2.npz\): failed at stage 'collate': Bad CRC-32"):
        list(wrap(etl.RawIterator(archives, NOTHING, 2, padding=padding)))
    skipping = wrap(etl.RawIterator(archives, NOTHING, 2, padding=padding, on_error="skip"))
    with pytest.warns(UserWarning, match=r"left out 1 of 4 records: record 2 of Archives \(2.npz\)"):
        assert [batch.labels.tolist() for batch in skipping] == [[0, 1], [3]]


class Drawn(Lazy):
    """A record whose label comes from an iterator that is at its end, except for that of the first ones."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if name != "label" or self._number < 2 else next(iter(()))


@pytest.mark.parametrize("options", [{"threads": 2}, {"workers": "process", "processes": 1}])
def test_a_field_that_raises_stop_iteration_does_not_end_the_epoch(options: dict[str, Any]) -> None:
    raw = etl.RawIterator([Drawn(number) for number in range(4)], NOTHING, 2)
    with (
        etl.AsyncIterator(raw, **options) as iterator,
        pytest.raises(RecordError, match=r"record 2 of .*: StopIteration"),
    ):
        list(iterator)


class Readings:
    """A source that only one thread may read, so that records are copied when a batch is planned with them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return Lazy(index) if index % 2 else {"features": np.full(2, index), "label": index, "spans": [[1], [2, 3]]}


class Unnamed(Readings):
    """The same without features."""

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"image": np.ones(2), "spans": [[1], [2, 3]]}


@pytest.mark.parametrize("padding", [None, Padding()])
def test_fields_that_no_batch_has_may_be_anything_however_many_threads_may_read(padding: Padding | None) -> None:
    for rank in range(2):
        batches = etl.RawIterator(Readings(), NOTHING, 1, padding=padding).shard(rank, 2)
        assert [batch.labels.tolist() for batch in batches] == [[rank], [rank + 2]]
    with pytest.raises(RecordError, match="it has no field 'features'; it has 'image', 'spans'"):
        list(etl.RawIterator(Unnamed(), NOTHING, 1, padding=padding))


class OneThread:
    """Records that only one thread may read."""

    def __init__(self, records: list[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        return self._records[index]


@pytest.mark.parametrize("padding", [None, Padding()])
@pytest.mark.parametrize("wrap", [list, etl.MapDataset, OneThread])
def test_masked_elements_are_not_taken_for_numbers(wrap: Any, padding: Padding | None) -> None:
    whole, masked = np.ma.masked_array([1.0, 2.0]), np.ma.masked_array([1.0, 1e20], [False, True])
    for number, features in enumerate([(masked, whole), (whole, masked)]):
        records = [{"features": each, "label": 0} for each in features]
        with pytest.raises(RecordError, match=rf"record {number} of .*masked elements, .* value\.filled\(0\)"):
            list(etl.RawIterator(wrap(records), NOTHING, 2, padding=padding))
    (batch,) = etl.RawIterator(wrap([{"features": whole, "label": 0}]), NOTHING, 2, padding=padding)
    assert batch.features.tolist() == [[1, 2]]


class Volumes:
    """A source of large records, which knows how many of them are alive whenever one is read."""

    def __init__(self) -> None:
        self.most_alive = 0
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = Record(features=np.full(3, index, np.float32), label=index)
        self._alive.add(record)
        self.most_alive = max(self.most_alive, len(self._alive))
        return record


class Record(dict[str, Any]):
    """A record that can be referred to weakly, by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize("threads", [0, 1])
def test_a_record_is_freed_before_the_next_one_is_read(threads: int) -> None:
    source = Volumes()
    raw = etl.RawIterator(source, NOTHING, 4)
    iterator = etl.AsyncIterator(raw, 1, threads=threads) if threads else raw
    list(iterator)  # the first record is kept until its batch is there: it was read to plan it
    source.most_alive = 0
    gc.disable()
    try:
        list(iterator)
    finally:
        gc.enable()
    assert source.most_alive == 1


def test_a_source_may_have_a_method_of_any_name() -> None:
    class Table:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"features": np.ones(2), "label": index}

        def read_rows(self, count: int) -> None:
            raise AssertionError("the loader must not call this")

    (batch,) = etl.RawIterator(Table(), NOTHING, 3)
    assert batch.labels.tolist() == [0, 1, 2]


def test_a_source_may_have_a_name_and_a_description_that_are_no_texts() -> None:
    class Table:
        name = np.arange(3)

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 1:
                raise ValueError("no such row")
            return {"features": np.ones(2), "label": index}

        def describe(self) -> str:
            return "a table of 3 rows"

    with pytest.raises(RecordError, match=r"^record 1 of Table: failed at stage 'read': no such row$"):
        list(etl.RawIterator(Table(), NOTHING, 3))


@pytest.mark.parametrize("classes", [3, np.arange(3), {"a": 0}, len], ids=["number", "numbers", "mapping", "function"])
def test_a_source_may_have_classes_and_options_of_any_kind(classes: Any, tmp_path: Path) -> None:
    class Scans(OneThread):
        classes: Any = None
        options = argparse.Namespace(root="scans")

    scans = Scans([{"features": np.ones(2), "label": number} for number in range(3)])
    scans.classes = classes
    with presave.write(tmp_path / "store", etl.records(scans, NOTHING)) as store:
        assert store.manifest.provenance.keys() == {"source", "stages"}
    scans.classes = np.array(["a", "b", "c"])
    assert etl.records(scans, NOTHING).provenance["classes"] == ["a", "b", "c"]


def test_a_missing_key_is_called_one() -> None:
    def resample(record: etl.sources.Record) -> etl.sources.Record:
        return {**record, "features": record["audio"]}

    with pytest.raises(RecordError, match=r"record 0 of list: failed at stage 'resample': KeyError: 'audio'$"):
        list(etl.RawIterator([{"features": np.ones(2)}], etl.Pipeline([resample]), 1))


def test_a_random_pipeline_inside_a_stage_is_the_error_of_that_stage() -> None:
    inner = etl.Pipeline([etl.stages.RandomFlip()])

    def augment(record: etl.sources.Record) -> etl.sources.Record:
        return inner(record)

    records = [{"features": np.ones((2, 2, 3), np.uint8), "label": 0}]
    with pytest.raises(RecordError, match="failed at stage 'augment': stage 'random_flip' is random"):
        list(etl.RawIterator(records, etl.Pipeline([augment]), 1))
    with pytest.raises(Exception, match="augment") as caught:
        etl.Pipeline([augment])(records[0])
    assert "'random_flip' is random" in str(caught.value.__cause__)
