"""A watched loader loads the same and records spans; a stage clock measures the time of each stage."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import numpy as np
import pytest

import etl
from etl.loading.loader_clocks import GAP_SECONDS, RecordRun, Span, StageClock, WatchedLoader
from etl.sources import Record
from etl.sources.record import RecordError
from etl.stages.cursor import IDLE, READING, ThreadCursor
from tests.delays import Delay, SlowSource
from tests.sequences import NOTHING

BATCHES, BATCH_SIZE = 6, 4


class Slow:
    """Records that let other threads run while they load; `bad` cannot be loaded."""

    def __init__(self, bad: int | None = None) -> None:
        self._bad = bad

    def __len__(self) -> int:
        return BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> Record:
        threading.Event().wait(0.002)
        if index == self._bad:
            raise ValueError("truncated")
        return {"features": np.full(3, index, np.float32), "label": index}


def watched_iterator(source: Slow, threads: int) -> tuple[etl.AsyncIterator, list[WatchedLoader]]:
    made: list[WatchedLoader] = []
    raw = etl.RawIterator(source, NOTHING, BATCH_SIZE, shuffle=True, seed=0)

    def watch(loader: object) -> WatchedLoader:
        made.append(WatchedLoader(loader))  # type: ignore[arg-type]
        return made[-1]

    raw.wrap_loader(watch)
    return etl.AsyncIterator(raw, prefetch_size=2, threads=threads), made


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_the_same_and_each_has_its_spans_in_the_threads_that_loaded_it(threads: int) -> None:
    iterator, made = watched_iterator(Slow(), threads)
    with iterator:
        labels = [batch.labels.tolist() for batch in iterator]
    with etl.RawIterator(Slow(), NOTHING, BATCH_SIZE, shuffle=True, seed=0) as plain:
        assert labels == [batch.labels.tolist() for batch in plain]
    (watched,) = made
    spans = watched.merged()
    assert {span.batch for span in spans} == set(range(BATCHES))
    assert 1 <= len({span.thread for span in spans}) <= threads
    assert [span.start for span in spans] == sorted(span.start for span in spans)
    for batch in range(BATCHES):
        # Records that take 2 ms each, on as many threads as there are.
        assert sum(span.end - span.start for span in watched.spans if span.batch == batch) >= BATCH_SIZE * 0.002
    for thread in {span.thread for span in spans}:
        assert all(one.end <= other.start for one, other in pairwise(each for each in spans if each.thread == thread))


def test_a_record_that_fails_is_the_error_it_was_and_its_span_is_kept() -> None:
    iterator, made = watched_iterator(Slow(bad=7), 1)
    with iterator, pytest.raises(RecordError, match="record 7 of Slow: failed at stage 'read': truncated"):
        list(iterator)
    assert made[0].spans


def test_it_says_what_the_loader_says() -> None:
    with etl.RawIterator(Slow(), NOTHING, BATCH_SIZE) as raw:
        watched = WatchedLoader(raw.loader)
        assert watched.granularity == raw.loader.granularity
        indices = np.array([5, 9])
        fields = watched.plan(indices, 0, ThreadCursor()).fields
        assert fields == raw.loader.plan(indices, 0, ThreadCursor()).fields
        arrays = {name: np.empty((2, *shape), dtype) for name, (shape, dtype) in fields.items()}
        assert watched.load(indices, 0, arrays, ThreadCursor()) == {}
        assert arrays["label"].tolist() == [5, 9]
        cause, at = ValueError("bad"), ThreadCursor(5)
        assert str(watched.name_error(at, cause)) == str(raw.loader.name_error(at, cause))


def test_parts_of_a_batch_that_follow_on_each_other_in_a_thread_are_one() -> None:
    with etl.RawIterator(Slow(), NOTHING, BATCH_SIZE) as raw:
        watched = WatchedLoader(raw.loader)
    near, far = GAP_SECONDS / 2, GAP_SECONDS * 10
    watched.spans = [
        Span(1, 1 + near, 2, 0),
        Span(1, 0, 1, 0),
        Span(2, 0.5, 1.5, 0),
        Span(1, 2 + near, 3, 1),
        Span(2, 1.5 + far, 3, 0),
    ]
    assert watched.merged() == [
        Span(1, 0, 2, 0),
        Span(2, 0.5, 1.5, 0),
        Span(2, 1.5 + far, 3, 0),
        Span(1, 2 + near, 3, 1),
    ]


RECORDS = 5


class Sleep:
    """A stage that sleeps."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.delay = Delay(seconds)

    def __call__(self, record: Record) -> Record:
        self.delay()
        return record


def timed(reading: Delay, stages: list[Sleep]) -> StageClock:
    """Every record once, after a batch was planned."""
    pipeline = etl.Pipeline(stages)
    with etl.RawIterator(SlowSource(reading, RECORDS), pipeline, RECORDS) as iterator:
        indices = np.arange(RECORDS)
        fields = iterator.loader.plan(indices, 0, ThreadCursor()).fields
        arrays = {name: np.empty((RECORDS, *shape), dtype) for name, (shape, dtype) in fields.items()}
        for delay in (reading, *(stage.delay for stage in stages)):
            delay.taken.clear()
        clock = StageClock(("read", *pipeline.names))
        iterator.loader.load(indices, 0, arrays, clock)
        clock.pause()
    return clock


def test_sleeping_stages_come_out_with_their_times_in_order() -> None:
    reading = Delay(0.01)
    stages = [Sleep("decode", 0.04), Sleep("resize", 0.02)]
    clock = timed(reading, stages)
    assert clock.records == RECORDS
    found = clock.seconds_per_record()
    assert [name for name, _ in found] == ["read", "decode", "resize"]
    taken = [sum(delay.taken) for delay in (reading, *(stage.delay for stage in stages))]
    for (_, seconds), slept in zip(found, taken, strict=True):
        assert seconds * RECORDS >= slept
        # What is not its own is less than what the others take: no stage has another's time.
        assert seconds * RECORDS - slept < sum(taken) - slept


def test_a_pipeline_without_stages_is_all_reading() -> None:
    reading = Delay(0.01)
    ((name, seconds),) = timed(reading, []).seconds_per_record()
    assert name == "read"
    assert seconds * RECORDS >= sum(reading.taken)


def test_a_pause_belongs_to_no_stage() -> None:
    clock = StageClock(("read", "decode"))
    clock.record, clock.stage = 7, READING
    clock.pause()
    time.sleep(0.2)
    clock.record, clock.stage = 8, READING
    clock.stage = 0
    clock.pause()
    assert clock.records == 2
    assert sum(seconds for _, seconds in clock.seconds_per_record()) * 2 < 0.2


def test_a_loader_is_stopped_when_the_time_is_up_and_not_before() -> None:
    clock = StageClock(("read",))
    assert not clock.cancelled
    clock.until = time.perf_counter()
    assert not clock.cancelled  # no rate follows from no record
    clock.record = 7
    assert clock.cancelled


def test_a_run_whose_time_was_up_before_it_began_loads_one_record() -> None:
    clock = StageClock(("read",))
    with etl.RawIterator(Slow(), NOTHING, BATCH_SIZE) as raw:
        RecordRun(raw.loader, BATCH_SIZE, BATCH_SIZE, seed=0).load_for(0.0, clock)
    assert clock.records == 1


def test_the_end_of_a_chunk_is_no_record() -> None:
    clock = StageClock(("read",))
    clock.record = IDLE
    assert clock.records == 0


def test_a_record_that_fails_while_its_stages_are_timed_is_named() -> None:
    raw = etl.RawIterator(Slow(bad=3), NOTHING, BATCH_SIZE)
    indices = np.arange(BATCH_SIZE)
    spec = raw.loader.plan(indices, 0, ThreadCursor())
    arrays = {name: np.empty((BATCH_SIZE, *shape), dtype) for name, (shape, dtype) in spec.fields.items()}
    with pytest.raises(RecordError, match=r"record 3 of .* stage 'read': truncated"):
        raw.loader.load(indices, 0, arrays, StageClock(("read",)))
