"""on_error="skip": bad records are left out of their batches, and the end of the epoch says which."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl.iterators import BatchIterator
from etl.loading.buffer_pool import round_up
from etl.sources import Record, RecordError
from presave.errors import is_fault_of_record
from tests.few_descriptors import few_descriptors
from tests.tar_files import write as write_tar

COUNT = 23
BAD = {0, 1, 2, 3, 9, 16, 22}
STRATEGIES = ["raw", "presaved", "async raw", "async presaved", "async 0"]
WIDE = 50_000  # enough for memory that is used again


def refuse_bad(record: Record) -> Record:
    if int(record["label"]) in BAD:
        raise ValueError(f"number {record['label']} is bad")
    return record


PIPELINE = etl.Pipeline([etl.stages.Cast("float64"), refuse_bad])
RECORDS = [{"features": np.array([number, -number], np.int64), "label": number} for number in range(COUNT)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    records = etl.records(RECORDS, PIPELINE.until("cast"))
    with presave.write(tmp_path_factory.mktemp("data") / "store", records) as opened:
        yield opened


def make_iterator(strategy: str, store: presave.Store, batch_size: int = 4, **options: Any) -> BatchIterator:
    iterator: BatchIterator
    if "presaved" in strategy:
        iterator = etl.PresavedIterator(store, PIPELINE.after("cast"), batch_size, on_error="skip", **options)
    else:
        iterator = etl.RawIterator(RECORDS, PIPELINE, batch_size, on_error="skip", **options)
    if "async" not in strategy:
        return iterator
    return etl.AsyncIterator(iterator, 0 if strategy.endswith("0") else 2, threads=3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bad_records_are_skipped_a_batch_of_only_bad_ones_is_omitted_and_the_end_of_every_epoch_warns(
    store: presave.Store, strategy: str
) -> None:
    name = str(store.path) if "presaved" in strategy else "list"
    shown = "; ".join(f"record {n} of {name}: failed at stage 'refuse_bad': number {n} is bad" for n in range(3))
    iterator = make_iterator(strategy, store)
    assert len(iterator) == 6  # batches of an epoch without a bad record
    for epoch in range(2):
        found, positions = [], []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in iterator:
                np.testing.assert_array_equal(batch.features[:, 0], batch.labels)
                assert batch.features.dtype == np.float32
                found.append(batch.labels.tolist())
                positions.append(iterator.state_dict()["position"])
        assert found == [[4, 5, 6, 7], [8, 10, 11], [12, 13, 14, 15], [17, 18, 19], [20, 21]]
        assert positions == [8, 12, 16, 20, 0]
        (warning,) = caught
        assert str(warning.message) == f"epoch {epoch} left out 7 of 23 records: {shown}; ..."
        assert warning.category is UserWarning


@pytest.mark.parametrize("strategy", ["raw", "async raw"])
def test_an_epoch_left_early_does_not_warn_and_the_next_counts_its_own(store: presave.Store, strategy: str) -> None:
    iterator = make_iterator(strategy, store)
    for _ in islice(iterator, 3):
        pass
    with pytest.warns(UserWarning, match="epoch 0 left out 7 of 23"):
        list(iterator)


@pytest.mark.parametrize("strategy", ["raw", "async raw"])
def test_a_loop_that_takes_the_last_batch_and_asks_for_no_other_is_followed_by_the_warning(
    store: presave.Store, strategy: str
) -> None:
    iterator = make_iterator(strategy, store)
    begin_or_set: list[Callable[[Any], object]] = [iter, lambda each: each.set_epoch(7)]
    for epoch, go_on in enumerate(begin_or_set):
        batches = iter(iterator)
        labels = [next(batches).labels.tolist() for _ in range(5)]
        assert labels[-1] == [20, 21]
        with pytest.warns(UserWarning, match=f"epoch {epoch} left out 7 of 23"):
            go_on(iterator)
    assert iterator.epoch == 7
    assert len(list(islice(iterator, 3))) == 3


@pytest.mark.parametrize(("saved_by", "loaded_by"), [("async raw", "presaved"), ("raw", "async presaved")])
def test_a_resumed_epoch_is_the_rest(store: presave.Store, saved_by: str, loaded_by: str) -> None:
    first, second = (make_iterator(each, store, shuffle=True) for each in (saved_by, loaded_by))
    with pytest.warns(UserWarning, match="left out"):
        whole = [batch.labels.tolist() for batch in make_iterator("raw", store, shuffle=True)]
    for _ in islice(first, 3):
        pass
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="left out"):
        assert [batch.labels.tolist() for batch in second] == whole[3:]
    assert second.epoch == 1


@pytest.mark.parametrize("strategy", ["raw", "async raw"])
def test_a_warning_turned_into_an_error_still_ends_the_epoch(store: presave.Store, strategy: str) -> None:
    iterator = make_iterator(strategy, store)
    for epoch in range(2):
        assert iterator.epoch == epoch
        with pytest.raises(UserWarning, match=f"epoch {epoch} left out"):  # warnings are errors in these tests
            list(iterator)
    assert iterator.state_dict()["epoch"] == 2


@pytest.mark.parametrize("strategy", ["raw", "async raw"])
def test_batches_of_one_record_are_those_of_the_good_ones(store: presave.Store, strategy: str) -> None:
    with pytest.warns(UserWarning, match="left out 7 of 23"):
        labels = [batch.labels.tolist() for batch in make_iterator(strategy, store, 1)]
    assert labels == [[number] for number in range(COUNT) if number not in BAD]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_epoch_without_a_good_record_is_an_error(threads: int) -> None:
    raw = etl.RawIterator(RECORDS[:4], PIPELINE, 2, on_error="skip")
    iterator = etl.AsyncIterator(raw, 2, threads=threads) if threads else raw
    with pytest.raises(RecordError, match="record 0 of list: failed at stage 'refuse_bad': number 0 is bad"):
        list(iterator)


def test_unreadable_records_and_those_of_another_shape_are_left_out_too() -> None:
    class Partly(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 2:
                raise OSError("disk on fire")
            return super().__getitem__(index)

    records = Partly({"features": np.zeros(4 if number == 1 else 3), "label": number} for number in range(5))
    message = (
        r"left out 2 of 5 records: record 1 of Partly: failed at stage 'collate': field 'features' has shape \(4,\).*; "
        "record 2 of Partly: failed at stage 'read': disk on fire$"
    )
    with pytest.warns(UserWarning, match=message):
        (batch,) = etl.RawIterator(records, etl.Pipeline([]), 5, on_error="skip")
    assert batch.labels.tolist() == [0, 3, 4]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_index_error_within_a_data_set_is_that_of_its_record(threads: int) -> None:
    class Short(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            parts = ["a", "b"] if index == 2 else ["a", "b", "c", "d"]
            return {**super().__getitem__(index), "kind": parts[3]}

    def make(on_error: Any) -> BatchIterator:
        raw = etl.RawIterator(Short(RECORDS[:6]), etl.Pipeline([]), 3, on_error=on_error)
        return etl.AsyncIterator(raw, threads=threads) if threads else raw

    message = "record 2 of Short: failed at stage 'read': list index out of range"
    with pytest.raises(RecordError, match=message):
        list(make("raise"))
    with pytest.warns(UserWarning, match=f"left out 1 of 6 records: {message}"):
        assert [batch.labels.tolist() for batch in make("skip")] == [[0, 1], [3, 4, 5]]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_record_that_was_left_out_keeps_no_memory_of_its_batch(threads: int) -> None:
    labels = [5, min(BAD)] * 12
    records = [{"features": np.full(WIDE, label, np.float32), "label": label} for label in labels]
    raw = etl.RawIterator(records, etl.Pipeline([refuse_bad]), 4, on_error="skip")
    iterator = etl.AsyncIterator(raw, 1, threads=threads) if threads else raw
    free = []

    def go_through() -> None:
        for batch in iterator:
            assert batch.features[:, 0].tolist() == [5, 5]
            free.append(len(raw._pool._free[round_up(4 * WIDE * 4)]))

    gc.collect()
    gc.disable()
    try:
        with pytest.warns(UserWarning, match="left out 12 of 24"):
            go_through()
    finally:
        gc.enable()
    assert max(free) > 0  # what was left of a batch was copied, and its own memory came back


def test_an_unknown_on_error_is_refused(store: presave.Store) -> None:
    wrong: Any = "ignore"
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', not 'ignore'"):
        etl.RawIterator(RECORDS, PIPELINE, on_error=wrong)
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', not 'ignore'"):
        etl.PresavedIterator(store, PIPELINE.after("cast"), on_error=wrong)


@pytest.mark.parametrize("stage", ["read", "grow"])
@pytest.mark.parametrize("number", [0, 5])
def test_a_record_that_runs_out_of_memory_is_named_and_not_left_out(stage: str, number: int) -> None:
    class Records(list[Record]):
        def __getitem__(self, index: Any) -> Any:
            return grow(super().__getitem__(index)) if stage == "read" else super().__getitem__(index)

    def grow(record: Record) -> Record:
        if record["label"] == number:
            raise MemoryError("no room")  # one of malloc's would move this thread to another arena for good
        return record

    pipeline = etl.Pipeline([] if stage == "read" else [grow])
    for iterator in (raw := etl.RawIterator(Records(RECORDS), pipeline, 4, on_error="skip"), etl.AsyncIterator(raw)):
        with pytest.raises(MemoryError, match=f"record {number} of Records: failed at stage '{stage}': no room"):
            list(iterator)


def raised(error: Exception, wrapped: str) -> Exception:
    """Return the error that comes out of users' code or a library that wraps `error`."""
    try:
        try:
            raise error
        except Exception as cause:
            if wrapped == "by a cause":
                raise ValueError("cannot read it") from cause
            if wrapped == "by a context":
                raise ValueError("cannot read it")  # noqa: B904
            raise
    except Exception as outer:  # noqa: BLE001 - it is what is asked
        return outer


_ERRNOS = ["EMFILE", "ENFILE", "ENOMEM", "EIO", "ESTALE", "ETIMEDOUT", "ENOSPC", "EDQUOT", "ECONNRESET", "ENODEV"]


@pytest.mark.parametrize("wrapped", ["not", "by a cause", "by a context"])
def test_what_the_machine_lacks_is_no_fault_of_a_record(wrapped: str) -> None:
    lacking: list[Exception] = [OSError(number := getattr(errno, name), os.strerror(number)) for name in _ERRNOS]
    lacking += [RuntimeError("can't start new thread"), RuntimeError("CUDA out of memory. Tried to allocate 20 MiB")]
    assert [error for error in lacking if is_fault_of_record(raised(error, wrapped))] == []


def test_a_defect_of_the_program_is_no_fault_of_a_record_unless_it_was_handled() -> None:
    for error in (ModuleNotFoundError("no module 'lz4'"), NameError("no name")):
        found = [is_fault_of_record(raised(error, wrapped)) for wrapped in ("not", "by a cause", "by a context")]
        assert found == [False, False, True]  # a decoder that was chosen because another is missing may fail
    assert not is_fault_of_record(TimeoutError())


def raise_again(record: Record) -> Record:
    try:
        return refuse_bad(record)
    except ValueError as error:
        raise error from error  # as in many data sets: it is its own cause


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_that_is_its_own_cause_is_that_of_its_record(threads: int) -> None:
    def make(**options: Any) -> BatchIterator:
        raw = etl.RawIterator(RECORDS, etl.Pipeline([raise_again]), 4, **options)
        return etl.AsyncIterator(raw, threads=threads) if threads else raw

    with pytest.raises(RecordError, match="record 0 of list: failed at stage 'raise_again': number 0 is bad"):
        list(make())
    with pytest.warns(UserWarning, match=f"left out {len(BAD)} of {COUNT} records"):
        assert sum(batch.records for batch in make(on_error="skip")) == COUNT - len(BAD)


@pytest.mark.parametrize("threads", [0, 2])
def test_files_that_cannot_be_opened_for_lack_of_descriptors_are_not_skipped(threads: int, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for number in range(4):
        (tmp_path / "c" / f"{number}.png").write_bytes(b"x")
    raw = etl.RawIterator(etl.ImageFolder(tmp_path), etl.Pipeline([]), 2, on_error="skip")
    iterator = etl.AsyncIterator(raw, threads=threads) if threads else raw
    with (
        few_descriptors(0),
        pytest.raises(RecordError, match=r"c/0\.png.*too many files are open, of which .* \(ulimit -n\)"),
    ):
        list(iterator)
    assert sum(batch.records for batch in iterator) == 4


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("gone", ["a file", "a folder", "everything", "all files"])
def test_a_file_that_is_gone_is_skipped_and_a_folder_that_is_gone_is_not(
    gone: str, threads: int, photographs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(photographs, tmp_path / "photos"))
    source = etl.ImageFolder(folder)
    chosen = folder / source.files[5]
    raw = etl.RawIterator(source, etl.Pipeline([etl.stages.Decode(), etl.stages.Resize(8, 8)]), 4, on_error="skip")
    iterator = etl.AsyncIterator(raw, threads=threads) if threads else raw
    for path in {"a file": [chosen], "all files": list(chosen.parent.iterdir())}.get(gone, []):
        path.unlink()
    if gone.endswith(("folder", "everything")):
        shutil.rmtree(chosen.parent if gone == "a folder" else folder)
    if gone == "a file":
        with pytest.warns(UserWarning, match=rf"left out 1 of {len(source)} records: record 5 of .*No such file"):
            assert sum(batch.records for batch in iterator) == len(source) - 1
    else:
        with pytest.raises(RecordError, match="No such file"):
            list(iterator)


@pytest.mark.parametrize("kind", ["csv", "tar"])
def test_a_table_or_shard_that_is_gone_loses_none_of_its_records(kind: str, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    path = tmp_path / f"data.{kind}"
    source: Any
    if kind == "csv":
        path.write_text("a,b\n" + "1,2\n" * 40)
        source = etl.Csv(path)
    else:
        source = etl.Tar(write_tar(path, [(f"{number}.jpg", b"image") for number in range(40)]))
    path.unlink()
    with pytest.raises(RecordError, match="the file is gone since it was opened; open it again"):
        list(etl.RawIterator(source, etl.Pipeline([]), 4, on_error="skip"))
