"""The stage clock: each stage comes out with the time that it took, in the order of the pipeline."""

from __future__ import annotations

import time

import numpy as np
import pytest

import etl
from etl.comparison.loader_clocks import StageClock
from etl.loading.batch_plan import nowhere

RECORDS = 5


class Sleep:
    """A stage, or a source, that sleeps, and knows for how long it really did."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self._seconds = seconds
        self.taken = 0.0

    def sleep(self) -> None:
        started = time.perf_counter()
        time.sleep(self._seconds)
        self.taken += time.perf_counter() - started

    def __call__(self, record: etl.Record) -> etl.Record:
        self.sleep()
        return record

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> etl.Record:
        self.sleep()
        return {"features": np.zeros(3, np.float32), "label": index}


def timed(source: Sleep, stages: list[Sleep]) -> StageClock:
    """Every record once, after the layout is known."""
    pipeline = etl.Pipeline(stages)
    with etl.RawIterator(source, pipeline, RECORDS) as iterator:
        numbers = np.arange(RECORDS)
        layout = iterator.loader.lay_out(numbers, 0, nowhere())
        arrays = {name: np.empty((RECORDS, *shape), dtype) for name, (shape, dtype) in layout.items()}
        del layout  # and with it the record that it was found out from
        for each in (source, *stages):
            each.taken = 0.0
        clock = StageClock(("read", *pipeline.names))
        iterator.loader.load(numbers, 0, arrays, clock)
        clock.pause()
    return clock


def test_sleeping_stages_come_out_with_their_times_in_order() -> None:
    source = Sleep("read", 0.01)
    stages = [Sleep("decode", 0.04), Sleep("resize", 0.02)]
    clock = timed(source, stages)
    assert clock.records == RECORDS
    found = clock.seconds_per_record()
    assert [name for name, _ in found] == ["read", "decode", "resize"]
    everything = sum(each.taken for each in (source, *stages))
    for (_, seconds), slept in zip(found, (source, *stages), strict=True):
        assert seconds * RECORDS >= slept.taken
        # What is not its own is less than what the others take: no stage has another's time.
        assert seconds * RECORDS - slept.taken < everything - slept.taken


def test_a_pipeline_without_stages_is_all_reading() -> None:
    source = Sleep("read", 0.01)
    ((name, seconds),) = timed(source, []).seconds_per_record()
    assert name == "read"
    assert seconds * RECORDS >= source.taken


def test_a_pause_belongs_to_no_stage() -> None:
    clock = StageClock(("read", "decode"))
    clock[0], clock[1] = 7, -1
    clock.pause()
    time.sleep(0.2)
    clock[0], clock[1] = 8, -1
    clock[1] = 0
    clock.pause()
    assert clock.records == 2
    assert sum(seconds for _, seconds in clock.seconds_per_record()) * 2 < 0.2


def test_it_never_asks_a_loader_to_stop_and_has_three_places() -> None:
    clock = StageClock(("read",))
    assert (clock[2], len(clock)) == (0, 3)
    with pytest.raises(TypeError, match="three places"):
        clock.append(1)
