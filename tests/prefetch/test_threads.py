"""Several threads share each batch: the caller sees the same batches, errors and ends as with none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
import presave
from etl.iterators import BatchIterator
from etl.iterators.indexed import IndexedIterator
from etl.loading.batch_plan import Granularity
from etl.prefetch.prefetcher import PendingBatch
from etl.sources import Record, RecordError
from etl.stages.cursor import ThreadCursor
from tests.leftovers import prefetch_threads, wait_for_prefetch_threads
from tests.watched_records import LIMIT_SECONDS, Watched

NOTHING = etl.Pipeline([])
RECORDS = [{"features": np.full(3, number), "label": number} for number in range(29)]


def as_it_is(record: Record) -> Record:
    """Hands on the gathered arrays: what is gathered for another part must not get into them."""
    return record


def labels_of(iterator: BatchIterator) -> list[list[int]]:
    return [batch.labels.tolist() for batch in iterator]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    with presave.write(tmp_path_factory.mktemp("data") / "store", RECORDS, shard_nbytes=24 * 7) as opened:
        assert len(opened.manifest.shards) > 3
        yield opened


def make(kind: str, store: presave.Store, batch_size: int) -> IndexedIterator:
    if kind == "raw":
        return etl.RawIterator(RECORDS, NOTHING, batch_size, shuffle=True)
    return etl.PresavedIterator(
        store, NOTHING if kind == "whole" else etl.Pipeline([as_it_is]), batch_size, shuffle=True
    )


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 31), st.sampled_from(["raw", "whole", "views"]))
def test_batches_and_states_are_those_of_the_plain_iterator(
    store: presave.Store, threads: int, prefetch_size: int, batch_size: int, kind: str
) -> None:
    def seen(iterator: BatchIterator) -> list[Any]:
        return [
            (batch.labels.tolist(), batch.features.tolist(), iterator.state_dict())
            for _ in range(2)
            for batch in iterator
        ]

    iterator = etl.AsyncIterator(make(kind, store, batch_size), prefetch_size, threads=threads)
    assert seen(iterator) == seen(make(kind, store, batch_size))
    assert prefetch_threads() == []


@pytest.mark.parametrize("kind", ["raw", "whole", "views"])
def test_the_parts_of_a_batch_may_be_loaded_in_any_order_by_any_thread(store: presave.Store, kind: str) -> None:
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]):
        plan, *_ = make(kind, store, 4).plans(ThreadCursor())
        for row in order:  # even rows in threads of their own
            if row % 2:
                plan.load(row, row + 1, ThreadCursor())
            else:
                chunk = threading.Thread(target=plan.load, args=(row, row + 1, ThreadCursor()))
                chunk.start()
                chunk.join()
        batch = plan.batch
        assert batch is not None
        assert batch.features[:, 0].tolist() == batch.labels.tolist()


class Counted:
    """Stands for the plan of a batch."""

    def __init__(self, rows: int, granularity: Granularity) -> None:
        self.rows = rows
        self.granularity = granularity


@given(st.integers(1, 2000), st.integers(1, 64), st.integers(1, 500), st.sampled_from(get_args(Granularity)))
def test_chunks_cover_a_batch_once_and_are_no_more_than_needed(
    rows: int, workers: int, least: int, granularity: Granularity
) -> None:
    pending = PendingBatch(Counted(rows, granularity), rows)  # type: ignore[arg-type]
    chunks = []
    while pending.next_row < rows:
        chunks.append(pending.take_chunk(workers, least))
    assert [row for first, last in chunks for row in range(first, last)] == list(range(rows))
    smallest = {"record": least, "share": max(least, -(-rows // workers)), "batch": rows}[granularity]
    sizes = [last - first for first, last in chunks]
    assert sizes == sorted(sizes[:-1], reverse=True) + sizes[-1:]
    assert all(size >= smallest for size in sizes[:-1])
    assert max(sizes) <= max(smallest, rows // (2 * workers), 1)
    assert len(chunks) <= 2 * workers * (2 + np.log(rows)) + 1


@pytest.mark.parametrize(("threads", "prefetch_size"), [(1, 1), (1, 3), (2, 2), (4, 1)])
def test_exactly_prefetch_size_batches_are_begun_ahead(threads: int, prefetch_size: int) -> None:
    records = Watched(29)
    with etl.AsyncIterator(etl.RawIterator(records, NOTHING, 4), prefetch_size, threads=threads) as iterator:
        batches = iter(iterator)
        for taken in range(3):
            records.assert_begun(4 * prefetch_size if taken == 0 else 4)
            assert next(batches).labels[0] == 4 * taken


def test_several_threads_may_take_the_batches_of_an_epoch() -> None:
    def take(batches: Iterator[etl.Batch]) -> list[int]:
        return [label for batch in batches for label in batch.labels.tolist()]

    records = Watched(29, waiting={28})  # all of them wait for the last batch, which one of them gets
    iterator = etl.AsyncIterator(etl.RawIterator(records, NOTHING, 4), threads=2)
    with ThreadPoolExecutor(3) as takers:
        for epoch in range(2):
            assert iterator.epoch == epoch
            batches = iter(iterator)
            taken = [takers.submit(take, batches) for _ in range(3)]
            records.assert_begun(29)
            records.gate.set()
            assert sorted(label for each in taken for label in each.result()) == list(range(29))
    assert iterator.epoch == 2


@pytest.mark.parametrize("threads", [2, 5])
def test_the_error_is_that_of_the_lowest_bad_record_of_the_first_bad_batch(threads: int) -> None:
    # Record 13 waits until 14, 15 and 20 have failed: the order in which they fail is not that of their numbers.
    records = Watched(29, waiting={13}, failing={13, 14, 15, 20})
    iterator = etl.AsyncIterator(etl.RawIterator(records, NOTHING, 8), 3, threads=threads)
    threading.Timer(0.05, records.gate.set).start()
    batches = iter(iterator)
    assert next(batches).labels.tolist() == list(range(8))
    with pytest.raises(RecordError, match=r"record 13 of Watched \(13.jpg\): failed at stage 'read': disk on fire"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    assert iterator.state_dict()["position"] == 8
    assert prefetch_threads() == []


@pytest.mark.parametrize("threads", [1, 3])
# The first record is loaded to plan the batches, before any of them begins.
@pytest.mark.parametrize(("hanging", "options"), [(0, {}), (1, {}), (12, {}), (0, {"memory_budget": 1 << 20})])
def test_a_hanging_record_is_named_with_its_file_and_stage_and_the_next_epoch_works(
    threads: int, hanging: int, options: dict[str, Any]
) -> None:
    records = Watched(29, waiting={hanging, hanging + 4})  # where there are several threads, in the next batch, too
    iterator = etl.AsyncIterator(etl.RawIterator(records, NOTHING, 4), 2, threads=threads, timeout=1, **options)
    message = rf"record {hanging} of Watched \({hanging}.jpg\): failed at stage 'read': not finished after 1 s of wait"
    with pytest.raises(RecordError, match=message) as caught:
        labels_of(iterator)
    assert isinstance(caught.value.__cause__, TimeoutError)
    records.waiting = ()
    assert labels_of(iterator) == labels_of(etl.RawIterator(RECORDS, NOTHING, 4))
    records.gate.set()
    wait_for_prefetch_threads()


def test_a_record_that_hangs_while_it_replaces_a_bad_one_is_named() -> None:
    records = Watched(29, waiting={1}, failing={4, 5, 6, 7})
    raw = etl.RawIterator(records, NOTHING, 4, on_error="skip").shard(1, 2)  # whose first batch is all bad
    with pytest.raises(RecordError, match=r"record 1 of Watched \(1.jpg\): failed at stage 'read': not finished after"):
        labels_of(etl.AsyncIterator(raw, 2, threads=2, timeout=1))
    records.gate.set()
    wait_for_prefetch_threads()


def test_a_hanging_stage_is_named() -> None:
    gate = threading.Event()

    def wait_for_it(record: Record) -> Record:
        assert record["label"] != 2 or gate.wait(LIMIT_SECONDS)
        return record

    raw = etl.RawIterator(RECORDS, etl.Pipeline([wait_for_it]), 8)
    with pytest.raises(RecordError, match="record 2 of list: failed at stage 'wait_for_it': not finished"):
        labels_of(etl.AsyncIterator(raw, 1, threads=1, timeout=1))
    gate.set()
    wait_for_prefetch_threads()


def test_an_iterator_of_the_callers_own_is_advanced_by_one_thread() -> None:
    class Foreign:
        """Only the protocol, without what makes its batches divisible."""

        async_supported = True

        def __init__(self) -> None:
            self._inside = etl.RawIterator(RECORDS, NOTHING, 4)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inside, name)

        def __len__(self) -> int:
            return len(self._inside)

        def __iter__(self) -> Iterator[etl.Batch]:
            for batch in self._inside:
                assert len(prefetch_threads()) == 1
                yield batch

    foreign: Any = Foreign()
    iterator = etl.AsyncIterator(foreign, 3, threads=4)
    assert iterator.threads == 1
    assert labels_of(iterator) == labels_of(etl.RawIterator(RECORDS, NOTHING, 4))
