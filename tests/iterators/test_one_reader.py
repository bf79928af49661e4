"""One thread reads a data set that is not thread-safe, the same one in all epochs; several are tried before use."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset

import etl
from etl.loading import Padding
from etl.sources import Record, RecordError
from tests.forked_child import forked
from tests.shared_handles import (
    COLLIDING,
    COUNT,
    SHARED,
    AnyThreadsConnection,
    Buffer,
    Connection,
    EarlyConnection,
    OpenHdf5,
    OpenZip,
    Position,
    Shared,
)
from tests.user_modules import user_module

NOTHING = etl.Pipeline([])
LIMIT_SECONDS = 20
every_kind = pytest.mark.parametrize("make", SHARED, ids=lambda each: each.__name__)


def names(before: Collection[threading.Thread]) -> list[str]:
    """The names of threads that load and were not there before."""
    return [each.name for each in threading.enumerate() if each not in before and each.name.startswith("etl-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LIMIT_SECONDS
    while names(before):  # a thread ends by itself when its iterator is gone
        assert time.monotonic() < deadline
        time.sleep(0.01)


def over(dataset: Any, **options: Any) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(etl.MapDataset(dataset), NOTHING, 8, shuffle=True, dtype=None), **options)


def check(batches: Iterator[etl.Batch], count: int | None = None) -> int:
    """Check batches, `count` of them if given; return the number of records."""
    records = 0
    for number, batch in enumerate(batches, 1):
        expected = np.broadcast_to(batch.labels[:, None, None], batch.features.shape)
        assert np.array_equal(batch.features, expected)
        records += batch.records
        if number == count:
            break
    return records


@every_kind
@pytest.mark.parametrize("options", [{}, {"memory_budget": 1 << 20, "timeout": 60}], ids=str)
def test_one_thread_reads_in_all_epochs(make: type[Shared], options: dict[str, Any], tmp_path: Path) -> None:
    dataset = make(tmp_path)
    with over(dataset, **options) as iterator:
        assert check(iter(iterator)) == COUNT
        check(iter(iterator), count=2)  # and the loop is left
        iterator.set_epoch(5)
        check(iter(iterator), count=3)
        state = iterator.state_dict()
        iterator.load_state_dict(state)
        assert check(iter(iterator)) == COUNT - 3 * 8
    assert len(set(dataset.readers)) == 1
    assert dataset.readers[0] != threading.get_ident()


@pytest.mark.parametrize("options", [{}, {"workers": "process", "processes": 1}], ids=str)
def test_the_same_thread_reads_what_replaces_a_batch_of_bad_records(options: dict[str, Any], tmp_path: Path) -> None:
    def refuse(record: Record) -> Record:
        if 16 <= record["label"] < 24:  # the second batch of rank 0
            raise ValueError("bad")
        return record

    dataset = Connection(tmp_path)
    raw = etl.RawIterator(etl.MapDataset(dataset), etl.Pipeline([refuse]), 8, dtype=None, on_error="skip")
    with etl.AsyncIterator(raw.shard(0, 2), **options) as iterator:
        for _ in range(2):
            with pytest.warns(UserWarning, match=f"left out 8 of {COUNT} records"):
                assert check(iter(iterator)) == COUNT // 2
    # With processes, this one reads from a copy, whose connection refuses other threads than the first.
    assert len(set(dataset.readers)) == (0 if "workers" in options else 1)
    assert threading.get_ident() not in dataset.readers


@every_kind
def test_the_calling_thread_reads_if_nothing_is_prefetched(make: type[Shared], tmp_path: Path) -> None:
    dataset = make(tmp_path)
    assert check(iter(over(dataset, prefetch_size=0))) == COUNT
    assert set(dataset.readers) == {threading.get_ident()}


def subset_of(dataset: Any) -> Any:
    return Subset(ConcatDataset([dataset]), range(COUNT))


@pytest.mark.parametrize("make", [Position, Connection], ids=lambda each: each.__name__)
def test_data_sets_of_torch_around_it_are_read_by_one_thread(make: type[Shared], tmp_path: Path) -> None:
    dataset = make(tmp_path)
    with over(subset_of(dataset)) as iterator:
        assert iterator.threads == 1
        assert [check(iter(iterator)) for _ in range(2)] == [COUNT] * 2
    assert len(set(dataset.readers)) == 1


def test_a_loader_that_reads_in_the_thread_is_read_by_one_in_all_epochs(tmp_path: Path) -> None:
    dataset = Connection(tmp_path)
    with etl.AsyncIterator(DataLoader(dataset, 8)) as iterator:  # type: ignore[arg-type]
        assert [sum(len(labels) for _, labels in iterator) for _ in range(3)] == [COUNT] * 3
    assert len(set(dataset.readers)) == 1


@pytest.mark.parametrize("make", [*COLLIDING, Connection, EarlyConnection], ids=lambda each: each.__name__)
def test_threads_that_were_asked_for_and_collide_are_an_error(make: type[Shared], tmp_path: Path) -> None:
    advice = (
        rf"3 threads cannot read {make.__name__} at once: record \d+ (differs in 'features'|fails \(.*\)). "
        "Leave out the number of threads, so that one reads; use processes; or open a file or connection in each thread"
    )
    early = "the thread that iterates can read it, so perhaps its file or connection belongs to the thread that opened"
    iterator = over(make(tmp_path), threads=3)
    with pytest.raises(ValueError, match=early if make is EarlyConnection else advice):
        check(iter(iterator))


@pytest.mark.parametrize("make", [OpenZip, OpenHdf5, AnyThreadsConnection], ids=lambda each: each.__name__)
def test_threads_that_were_asked_for_and_do_not_collide_read(make: type[Shared], tmp_path: Path) -> None:
    with over(make(tmp_path), threads=3) as iterator:
        assert iterator.threads == 3
        assert [check(iter(iterator)) for _ in range(2)] == [COUNT] * 2


@pytest.mark.parametrize("probability", [0.02, 0.5, 0.9])
def test_random_transforms_are_no_collision(probability: float, tmp_path: Path) -> None:
    """Many readings of a record are equal by chance: of 16 records read twice, few or none differ."""

    class Flipped(OpenZip):
        def read(self, index: int) -> np.ndarray:
            return super().read(index) + np.uint8(np.random.default_rng().random() < probability)

    state = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]  # noqa: NPY002
    with over(Flipped(tmp_path), threads=2) as iterator:
        assert sum(batch.records for batch in iterator) == COUNT
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index,union-attr]  # noqa: NPY002


def test_fields_beside_a_random_one_are_compared(tmp_path: Path) -> None:
    class Relabelled(Buffer):
        def __getitem__(self, index: int) -> Any:
            features, _ = super().__getitem__(index)
            return features, int(np.random.default_rng().integers(2))

    iterator = over(Relabelled(tmp_path), threads=2)
    with pytest.raises(ValueError, match=r"2 threads cannot read Relabelled at once: record \d+ differs in 'features'"):
        list(iterator)


class Meeting(OpenZip):
    """Waits at the second record until another thread reads, too."""

    def prepare(self) -> None:
        super().prepare()
        self.have_met = threading.Event()

    def read(self, index: int) -> np.ndarray:
        if len(set(self.readers)) > 1:
            self.have_met.set()
        assert len(self.readers) == 1 or self.have_met.wait(LIMIT_SECONDS)
        return super().read(index)


class DeclaredMeeting(Meeting):
    thread_safe = True

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


@pytest.mark.parametrize(("make", "thread_safe"), [(Meeting, True), (DeclaredMeeting, None)])
def test_a_data_set_that_says_so_is_read_by_several_threads(
    make: type[Shared], thread_safe: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.runtime.thread_policy.rank_cpus", lambda: 2)
    source = etl.MapDataset(make(tmp_path), thread_safe=thread_safe)
    with etl.AsyncIterator(etl.RawIterator(source, NOTHING, 8, dtype=None)) as iterator:
        assert iterator.threads == 2
        assert check(iter(iterator)) == COUNT


@pytest.mark.parametrize("options", [{"threads": 1}, {"memory_budget": 1 << 20}], ids=str)
def test_a_connection_of_another_thread_is_an_error_that_says_what_to_do(
    options: dict[str, Any], tmp_path: Path
) -> None:
    message = (
        "failed at stage 'read': SQLite objects created in a thread can only be used in that same thread.*; the thread "
        "that iterates can read it, .*: open one in each thread, with threading.local, or pass prefetch_size=0"
    )
    dataset = EarlyConnection(tmp_path)
    with over(dataset, **options) as iterator, pytest.raises(RecordError, match=message):
        check(iter(iterator))
    assert check(iter(over(dataset, prefetch_size=0))) == COUNT


def test_a_connection_in_each_thread_can_be_read_by_several(tmp_path: Path) -> None:
    class EachThread(Connection):
        def prepare(self) -> None:
            super().prepare()
            self.local = threading.local()

        def read(self, index: int) -> np.ndarray:
            if not hasattr(self.local, "connection"):
                self.local.connection = self.connect()
            (found,) = self.local.connection.execute("select pixels from records where number=?", (index,)).fetchone()
            return np.frombuffer(found, np.uint8).reshape(16, 16)

    with over(EachThread(tmp_path), threads=3) as iterator:
        assert [check(iter(iterator)) for _ in range(2)] == [COUNT] * 2


def test_a_source_found_by_name_opens_nothing_before_it_is_iterated(tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from torch.utils.data import Subset
        from tests.shared_handles import Connection
        def dataset():
            return Subset(Connection(Path({str(tmp_path)!r})), range(60))
    """
    with user_module(tmp_path, "my_connection", code):
        source = etl.open_source("my_connection:dataset")
        iterator = etl.AsyncIterator(etl.RawIterator(source, NOTHING, 8, dtype=None))
        assert [check(iter(iterator)) for _ in range(2)] == [COUNT] * 2


def test_processes_read_with_connections_of_their_own(tmp_path: Path) -> None:
    with over(Connection(tmp_path), workers="process", processes=1) as iterator:
        assert [check(iter(iterator)) for _ in range(2)] == [COUNT] * 2


def test_a_data_set_that_was_read_for_processes_can_be_sent_to_others(tmp_path: Path) -> None:
    dataset: Any = Connection(tmp_path)
    source = etl.MapDataset(dataset)
    options: dict[str, Any] = {"workers": "process", "processes": 1}
    with etl.AsyncIterator(etl.RawIterator(source, NOTHING, 8, dtype=None), **options) as iterator:
        source.collated(next(iter(iterator)))
        assert dataset.connection is None
        with over(Subset(dataset, range(20)), **options) as other, copy.deepcopy(iterator) as copied:
            assert (check(iter(other)), check(iter(copied))) == (20, COUNT)


def test_padded_records_in_one_buffer_are_loaded_as_they_are() -> None:
    buffer = np.zeros((9, 1), np.float32)

    class Ragged:
        ragged = ("features",)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Record:
            buffer[:] = index
            return {"features": buffer[: index + 1], "label": index}

    for wrap in (lambda each: each, etl.AsyncIterator):
        (batch,) = wrap(etl.RawIterator(Ragged(), NOTHING, 8, padding=Padding()))
        for index in range(8):
            assert batch.features[index].ravel().tolist() == [index] * (index + 1) + [0] * (7 - index)


def test_the_thread_ends_with_the_iterator_and_at_close(tmp_path: Path) -> None:
    dataset, before = Buffer(tmp_path), set(threading.enumerate())  # of garbage of other tests
    iterator = over(dataset)
    check(iter(iterator), count=1)
    assert names(before) == ["etl-idle"]
    iterator.close()
    with pytest.raises(RuntimeError, match="is closed"):
        iter(iterator)
    other = over(dataset)
    check(iter(other), count=1)
    del other  # the fixture waits for its thread


def test_a_record_that_hangs_is_named_and_another_thread_reads_the_next_epoch(tmp_path: Path) -> None:
    gate = threading.Event()
    asked: list[int] = []

    class Hanging(Buffer):
        def read(self, index: int) -> np.ndarray:
            asked.append(index)
            if asked.count(20) == 1 and index == 20:  # only in the first epoch
                gate.wait(LIMIT_SECONDS)
            return super().read(index)

    source = etl.MapDataset(Hanging(tmp_path))
    iterator = etl.AsyncIterator(etl.RawIterator(source, NOTHING, 8, dtype=None), timeout=1)
    with pytest.raises(RecordError, match=r"record 20 of Hanging: .* not finished after 1 s"):
        check(iter(iterator))
    iterator.set_epoch(3)
    assert check(iter(iterator)) == COUNT
    gate.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_loader_that_fails_to_end_the_next_epoch_is_loaded() -> None:
    class Stubborn:
        def __iter__(self) -> Iterator[Any]:
            try:
                for number in range(4):
                    yield np.full((2, 3), number, np.float32), np.zeros(2, np.int64)
            except:  # noqa: E722 - as users write it
                yield None

    iterator = etl.AsyncIterator(Stubborn())
    for _ in iterator:
        break
    assert len(list(iterator)) == 4


def test_copies_and_forks_have_threads_of_their_own(tmp_path: Path) -> None:
    iterator = over(Buffer(tmp_path))
    assert check(iter(iterator)) == COUNT
    copied = copy.deepcopy(iterator)
    assert check(iter(copied)) == check(iter(iterator)) == COUNT

    def read_in_the_child() -> None:
        assert check(iter(iterator)) == COUNT

    assert forked(read_in_the_child) == 0
