"""Records that share a file, a connection or a buffer are written as they are, however many jobs there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import etl
import presave
from presave.thread_safety import is_thread_safe, unopened
from tests.shared_handles import COUNT, SHARED, SIDE, Buffer, Connection, Records, Shared, pixels

LIMIT_SECONDS = 20
SHARD_NBYTES = SIDE * SIDE * 4


class Declared(Records):
    """Records that allow several threads, and wait for a second one."""

    thread_safe = True

    def __init__(self, dataset: Shared) -> None:
        super().__init__(dataset)
        self.readers: set[int] = set()
        self.both = threading.Event()

    def __getitem__(self, index: int) -> presave.Record:
        self.readers.add(threading.get_ident())
        if len(self.readers) > 2:  # besides the one that looks at the first record
            self.both.set()
        if index:
            assert self.both.wait(LIMIT_SECONDS)
        return {"features": pixels(index), "label": index}


class Wraps(Declared):
    """Reads in its own way."""

    def __getitem__(self, index: int) -> presave.Record:
        return super().__getitem__(index)


class Named(Declared):
    """Reads as its base class does."""

    name = "records"


def check(store: presave.Store) -> None:
    assert store.gather(range(COUNT))["label"].tolist() == list(range(COUNT))
    for index in range(COUNT):
        assert (store[index]["features"] == index).all()


def etl_records(dataset: Shared) -> Any:
    return etl.records(etl.MapDataset(dataset), etl.Pipeline([]))


@pytest.mark.parametrize(
    ("make", "records_of", "jobs"),
    [*((make, Records, 4) for make in SHARED), (Buffer, etl_records, 4), (Buffer, Records, 2), (Buffer, Records, -1)],
)
def test_records_that_share_something_are_stored_as_they_are(
    make: type[Shared], records_of: Callable[[Shared], Any], jobs: int, tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    with presave.write(tmp_path / "s", records_of(dataset), jobs=jobs, shard_nbytes=SHARD_NBYTES) as store:
        check(store)
    assert set(dataset.readers) == {threading.get_ident()}


def test_threads_of_joblib_change_nothing(tmp_path: Path) -> None:
    with (
        joblib.parallel_config(backend="threading", n_jobs=4),
        presave.write(tmp_path / "s", Records(Buffer(tmp_path)), jobs=4, shard_nbytes=SHARD_NBYTES) as store,
    ):
        check(store)


def test_records_that_say_so_are_read_by_several_threads(tmp_path: Path) -> None:
    records = Declared(Buffer(tmp_path))
    with presave.write(tmp_path / "s", records, jobs=2, shard_nbytes=SHARD_NBYTES) as store:
        check(store)
    assert len(records.readers) == 3


def test_ragged_records_in_one_buffer_are_stored_as_they_are(tmp_path: Path) -> None:
    buffer = np.zeros(9, np.int64)

    class Ragged:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> presave.Record:
            buffer[:] = index
            return {"x": buffer[: index + 1]}

    with presave.write(tmp_path / "s", Ragged(), ragged=["x"]) as store:
        assert [store[index]["x"].tolist() for index in range(8)] == [[index] * (index + 1) for index in range(8)]


@pytest.mark.usefixtures("_loky")
def test_a_connection_that_is_opened_on_the_first_read_is_opened_in_each_process(tmp_path: Path) -> None:
    dataset = Connection(tmp_path)
    with presave.write(tmp_path / "s", Records(dataset), jobs=2, shard_nbytes=SHARD_NBYTES) as store:
        check(store)
    assert dataset.connection is None


@pytest.mark.parametrize(
    ("records", "is_safe"),
    [
        ([], True),
        ((), True),
        (np.zeros(3), True),
        (Records, False),
        (Declared, True),
        (Wraps, False),
        (Named, True),
    ],
    ids=str,
)
def test_a_class_speaks_for_its_own_reading_only(records: Any, is_safe: bool, tmp_path: Path) -> None:
    assert is_thread_safe(records(Buffer(tmp_path)) if isinstance(records, type) else records) == is_safe


def test_a_subset_of_torch_is_as_safe_as_what_it_chooses_from(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    for records, is_safe in (([1, 2], True), (Declared(Buffer(tmp_path)), True), (Records(Buffer(tmp_path)), False)):
        subset = data.Subset(records, [1, 0])
        assert is_thread_safe(subset) == is_thread_safe(data.Subset(subset, [0])) == is_safe


def test_what_is_read_from_a_copy_opens_nothing_in_the_original_and_copies_no_data(tmp_path: Path) -> None:
    records: Any = Records(Connection(tmp_path))
    records.table, records.function = np.arange(9), lambda: 0
    copy = unopened(records)
    assert (copy[3]["features"] == 3).all()
    assert copy.dataset.connection is not None
    assert records.dataset.connection is None
    assert copy.table is records.table
    assert copy.function is records.function


def test_records_that_cannot_be_pickled_are_read_themselves(tmp_path: Path) -> None:
    records: Any = Records(Buffer(tmp_path))
    records.file = (tmp_path / "open").open("w")
    assert unopened(records) is records
    records.file.close()
