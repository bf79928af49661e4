"""Worker processes that fail, die or hang in ways of their own: what tests/torture/test_workers.py leaves open."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import etl
from etl.prefetch import start
from etl.prefetch.worker_main import WorkerTracebackError
from etl.sources import RecordError
from tests.unlucky_records import BATCHES, Files, Unlucky
from tests.worker_processes import assert_ended, make_async


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "fault"


@pytest.fixture(scope="module")
def iterator(fault: Path) -> Iterator[etl.AsyncIterator]:
    raw = etl.RawIterator(Files(fault), etl.Pipeline([Unlucky(fault)]), 4)
    with etl.AsyncIterator(raw, 3, workers="process", processes=2, timeout=30) as opened:
        yield opened


def test_an_error_carries_the_traceback_of_the_worker(iterator: etl.AsyncIterator, fault: Path) -> None:
    fault.write_text("5 raises")
    with pytest.raises(RecordError) as caught:
        list(iterator)
    fault.unlink()
    assert isinstance(caught.value.__cause__, OSError)
    trace = caught.value.__cause__.__cause__
    assert isinstance(trace, WorkerTracebackError)
    assert "in happen" in str(trace)


def test_an_error_that_cannot_be_pickled_keeps_its_text(iterator: etl.AsyncIterator, fault: Path) -> None:
    fault.write_text("5 cannot be pickled")
    with pytest.raises(RecordError, match=r"record 5 of photos .*: only here") as caught:
        list(iterator)
    fault.unlink()
    assert "UnpicklableError: only here" in str(caught.value.__cause__)


def test_a_worker_that_exits_is_an_error_with_its_code(iterator: etl.AsyncIterator, fault: Path) -> None:
    fault.write_text("5 exits")
    with pytest.raises(RecordError, match=r"record 5 of photos .* ended with exit code 7"):
        list(iterator)
    fault.unlink()


def test_a_worker_that_is_killed_while_it_waits_is_replaced_for_the_next_epoch(iterator: etl.AsyncIterator) -> None:
    for child in multiprocessing.active_children():
        if child.name == "etl-worker":
            child.kill()
            child.join()
    assert [batch.labels.tolist() for batch in iterator] == BATCHES


def refuse(times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the server that forks workers refuse so many times, as one that was killed and is not gone yet; the list
    grows by an item each time.
    """
    connect = forkserver.connect_to_new_process
    refused: list[int] = []

    def connect_or_not(fds: Any) -> Any:
        if len(refused) < times:
            refused.append(len(refused))
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return connect(fds)

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect_or_not)
    return refused


def test_a_server_that_is_just_ending_costs_no_error(fault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refuse(3, monkeypatch)
    with make_async(Files(fault)) as iterator:
        assert [batch.labels.tolist() for batch in iterator] == BATCHES
    assert len(refused) == 3


def test_a_server_that_answers_nobody_is_one_error_and_the_next_epoch_tries_again(
    fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "SERVER_PATIENCE_SECONDS", 0.05)
    refuse(10**6, monkeypatch)
    with make_async(Files(fault)) as iterator:
        with pytest.raises(ChildProcessError, match=r"cannot be started \(ConnectionRefusedError"):
            list(iterator)
        monkeypatch.undo()
        assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_workers_that_are_killed_while_they_wait_within_an_epoch_cost_no_error(fault: Path) -> None:
    with make_async(Files(fault), prefetch_size=1) as iterator:
        list(iterator)
        before = set(multiprocessing.active_children())
        batches = iter(iterator)
        got = [next(batches).labels.tolist()]
        prefetcher = iterator._running()._prefetcher  # type: ignore[union-attr, misc]
        while not (prefetcher._pending and prefetcher._pending[0].is_done):
            time.sleep(0.01)
        workers = iterator._worker_pool.workers  # type: ignore[union-attr]
        while not all(worker.pid for worker in workers):
            time.sleep(0.01)  # the epoch can do without the second one
        pids = {int(worker.pid) for worker in workers}  # type: ignore[arg-type]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert_ended(pids)
        assert got + [batch.labels.tolist() for batch in batches] == BATCHES
        assert set(multiprocessing.active_children()) != before


def test_a_worker_that_dies_at_a_batch_that_nobody_waits_for_is_no_error(
    iterator: etl.AsyncIterator, fault: Path
) -> None:
    fault.write_text("9 is killed")
    iterator.set_epoch(0)
    for batch in iterator:
        assert batch.labels.tolist() == BATCHES[0]
        break
    fault.unlink()
    assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_after_a_fault_it_can_be_closed_at_once(fault: Path) -> None:
    before = set(multiprocessing.active_children())
    raw = etl.RawIterator(Files(fault), etl.Pipeline([Unlucky(fault)]), 4)
    iterator = etl.AsyncIterator(raw, 2, workers="process", processes=1, timeout=1)
    fault.write_text("5 hangs")
    with pytest.raises(RecordError, match="record 5"):
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
    with etl.AsyncIterator(raw, 2, workers="process", processes=1, timeout=1) as iterator:
        fault.write_text("")
        with pytest.raises(RecordError, match=r"record 0 of photos \(00.jpg\): failed at stage 'read': not finished"):
            list(iterator)
        fault.unlink()
        assert [batch.labels.tolist() for batch in iterator] == BATCHES


def test_records_that_are_left_out_are_counted_as_by_the_plain_iterator(fault: Path) -> None:
    broken: list[Any] = [{"features": [float(number)], "label": number} for number in range(10)]
    broken[3] = broken[6] = broken[7] = {"label": 0}

    def epoch(wrap: bool) -> tuple[list[list[int]], list[str]]:
        iterator: Any = etl.RawIterator(broken, etl.Pipeline([]), 2, on_error="skip").shard(1, 2)
        if wrap:
            iterator = etl.AsyncIterator(iterator, 2, workers="process", processes=2)
        with iterator, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            labels = [batch.labels.tolist() for batch in iterator]
        return labels, [str(each.message) for each in caught]

    labels, said = epoch(wrap=True)
    assert labels == [[2], [0, 1], [9]]  # 6 and 7 are replaced, since all ranks get three batches
    assert said[0].startswith("epoch 0 left out 3 of 10 records: record 3 of list")
    assert (labels, said) == epoch(wrap=False)


class MostlyBad(Files):
    """60,000 records, of which the first 3,000 fail with much to say."""

    def __len__(self) -> int:
        return 60_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        if 0 < index <= 3_000:
            raise OSError(f"disk on fire {'!' * 100}")
        return super().__getitem__(index)


def test_tasks_and_answers_that_are_larger_than_the_pipe_between_them_wait_for_nobody(fault: Path) -> None:
    raw = etl.RawIterator(MostlyBad(fault), etl.Pipeline([]), 60_000, on_error="skip")
    with (
        etl.AsyncIterator(raw, 1, workers="process", processes=1, timeout=20) as iterator,
        pytest.warns(UserWarning, match="left out 3,000 of 60,000"),
    ):
        assert [batch.records for batch in iterator] == [57_000]
