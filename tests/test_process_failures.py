"""Worker processes that fail, die or hang: one error at the batch it belongs to, and the next epoch works."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etl
from etl.workers.worker import WorkerTracebackError

BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17]]
TIMEOUT_SECONDS = 2.0


class Files:
    """18 records, each of a file; what the file `fault` says happens to workers: how, and at which record."""

    name = "photos"

    def __init__(self, fault: Path) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": [float(index)], "label": index}

    def describe(self, index: int) -> str:
        return f"{index:02}.jpg"


class Unlucky:
    """A stage to which what `fault` says happens."""

    name = "unlucky"

    def __init__(self, fault: Path) -> None:
        self.fault = fault

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        if multiprocessing.parent_process() is not None and self.fault.exists():
            how, number = self.fault.read_text().split()
            if record["label"] == int(number):
                happen(how)
        return record


class UnpicklableError(Exception):
    """An error that is pickled and cannot be unpickled."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)


def happen(how: str) -> None:
    if how == "raises":
        raise OSError("disk on fire")
    if how == "cannot-be-pickled":
        raise UnpicklableError("only here", code=3)
    if how == "exits":
        os._exit(7)
    if how == "is-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "fault"


@pytest.fixture(scope="module")
def iterator(fault: Path) -> Iterator[etl.AsyncIterator]:
    raw = etl.RawIterator(Files(fault), etl.Pipeline([Unlucky(fault)]), 4)
    with etl.AsyncIterator(raw, 3, workers="process", processes=2, timeout=TIMEOUT_SECONDS) as opened:
        yield opened


@pytest.mark.parametrize(
    ("how", "cause", "text"),
    [
        ("raises", OSError, "disk on fire"),
        ("is-killed", ChildProcessError, r"worker process \d+ was killed by signal 9 \(out of memory\?\)"),
        ("hangs", TimeoutError, "not finished after 2 s of waiting for its batch"),
    ],
)
@pytest.mark.parametrize("record", [1, 9, 17])
def test_a_fault_is_one_error_at_its_batch_that_names_record_file_and_stage_and_the_next_epoch_works(
    iterator: etl.AsyncIterator, fault: Path, record: int, how: str, cause: type[Exception], text: str
) -> None:
    expected = [BATCHES[:0], BATCHES[:2], BATCHES[:4]][[1, 9, 17].index(record)]
    fault.write_text(f"{how} {record}")
    got = []
    epoch, batches = iterator.epoch, iter(iterator)
    message = rf"record {record} of photos \({record:02}.jpg\): failed at stage 'unlucky': {text}"
    with pytest.raises(etl.RecordError, match=message) as caught:  # noqa: PT012 - batches before it count
        for batch in batches:
            got.append(batch.labels.tolist())  # noqa: PERF401
    assert got == expected
    assert isinstance(caught.value.__cause__, cause)
    with pytest.raises(StopIteration):
        next(batches)
    assert iterator.state_dict()["position"] == 4 * len(expected)
    fault.unlink()
    assert iterator.epoch == epoch
    assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_an_error_carries_the_traceback_of_the_worker(iterator: etl.AsyncIterator, fault: Path) -> None:
    fault.write_text("raises 5")
    with pytest.raises(etl.RecordError) as caught:
        list(iterator)
    fault.unlink()
    assert isinstance(caught.value.__cause__, OSError)
    trace = caught.value.__cause__.__cause__
    assert isinstance(trace, WorkerTracebackError)
    assert "in happen" in str(trace)


def test_an_error_that_cannot_be_pickled_keeps_its_text(iterator: etl.AsyncIterator, fault: Path) -> None:
    fault.write_text("cannot-be-pickled 5")
    with pytest.raises(etl.RecordError, match=r"record 5 of photos .*: only here") as caught:
        list(iterator)
    fault.unlink()
    assert "UnpicklableError: only here" in str(caught.value.__cause__)


def test_a_worker_that_exits_is_an_error_with_its_code(iterator: etl.AsyncIterator, fault: Path) -> None:
    fault.write_text("exits 5")
    with pytest.raises(etl.RecordError, match=r"record 5 of photos .* ended with exit code 7"):
        list(iterator)
    fault.unlink()


def test_a_worker_that_is_killed_while_it_waits_is_replaced_for_the_next_epoch(iterator: etl.AsyncIterator) -> None:
    for child in multiprocessing.active_children():
        if child.name == "etl-worker":
            child.kill()
            child.join()
    assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_a_worker_that_dies_at_a_batch_that_nobody_waits_for_is_no_error(
    iterator: etl.AsyncIterator, fault: Path
) -> None:
    fault.write_text("is-killed 9")
    iterator.set_epoch(0)
    for batch in iterator:
        assert batch.labels.tolist() == BATCHES[0]
        break
    fault.unlink()
    assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_after_a_fault_it_can_be_closed_at_once(fault: Path) -> None:
    before = set(multiprocessing.active_children())
    raw = etl.RawIterator(Files(fault), etl.Pipeline([Unlucky(fault)]), 4)
    iterator = etl.AsyncIterator(raw, 2, workers="process", processes=1, timeout=0.5)
    fault.write_text("hangs 5")
    with pytest.raises(etl.RecordError, match="record 5"):
        list(iterator)
    iterator.close()
    fault.unlink()
    assert set(multiprocessing.active_children()) <= before


class HangsWhereItIsLaidOut(Files):
    """Its records wait in this process for as long as there is a file `fault`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        while multiprocessing.parent_process() is None and self.fault.exists():
            time.sleep(0.01)
        return super().__getitem__(index)


def test_a_record_that_hangs_before_any_batch_can_be_laid_out_is_named(fault: Path) -> None:
    raw = etl.RawIterator(HangsWhereItIsLaidOut(fault), etl.Pipeline([]), 4)
    with etl.AsyncIterator(raw, 2, workers="process", processes=1, timeout=0.5) as iterator:
        fault.write_text("")
        with pytest.raises(
            etl.RecordError, match=r"record 0 of photos \(00.jpg\): failed at stage 'read': not finished"
        ):
            list(iterator)
        fault.unlink()
        assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_records_that_are_left_out_are_counted_as_by_the_plain_iterator(fault: Path) -> None:
    broken: list[Any] = [{"features": [float(number)], "label": number} for number in range(10)]
    broken[3] = broken[6] = broken[7] = {"label": 0}

    def epoch(wrap: bool) -> tuple[list[list[int]], list[str]]:
        iterator: Any = etl.RawIterator(broken, etl.Pipeline([]), 2, on_error="skip")
        if wrap:
            iterator = etl.AsyncIterator(iterator, 2, workers="process", processes=2)
        with iterator, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            labels = [batch.labels.tolist() for batch in iterator]
        return labels, [str(each.message) for each in caught]

    labels, said = epoch(wrap=True)
    assert labels == [[0, 1], [2], [4, 5], [8, 9]]
    assert said[0].startswith("epoch 0 left out 3 of 10 records: record 3 of list")
    assert (labels, said) == epoch(wrap=False)
