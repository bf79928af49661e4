"""Writing a store on a Dask cluster, with a real scheduler and worker processes that may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import presave
from etl.sources import RecordError
from tests.presave.records import bytes_of
from tests.shared_handles import Buffer, Records, pixels

dask = pytest.importorskip("dask", reason="the cluster extra is not installed")
distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")

# joblib's own backend for Dask still has a method that joblib deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`apply_async` is deprecated:DeprecationWarning:joblib"),
    pytest.mark.filterwarnings("ignore:Creating scratch directories:UserWarning"),  # a busy disk
]

RECORDS, SHARD_RECORDS = 48, 4
WORKERS = 2
LIMIT_SECONDS = 240
# Another program may have a cluster with its dashboard, too.
ANY_PORT = {"dashboard_address": "127.0.0.1:0"}


class AwkwardError(Exception):
    """Can be pickled but not unpickled, like many exceptions of libraries."""

    def __init__(self, record: int, reason: str) -> None:
        super().__init__(f"{reason} {record}")


class CountedRecords:
    """Records that count their reads by workers in the folder `notes`. A worker calls `accident` at record `at`."""

    def __init__(self, notes: Path, at: int = -1, accident: Callable[[CountedRecords], None] | None = None) -> None:
        self.notes = notes
        self.at = at
        self.accident = accident
        self.caller = os.getpid()

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> presave.Record:
        if os.getpid() != self.caller:
            with (self.notes / f"{index}.reads").open("a") as file:
                file.write("x")
            if index == self.at and self.accident is not None:
                self.accident(self)
        return {"x": np.full(100, index, np.int32), "label": index % 7}

    def reads(self) -> dict[int, int]:
        """Return how often workers read each record, without the records that they never read."""
        found = {index: self.notes / f"{index}.reads" for index in range(RECORDS)}
        return {index: path.stat().st_size for index, path in found.items() if path.exists()}


def killed_once(records: CountedRecords) -> None:
    try:
        (records.notes / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def killed_always(records: CountedRecords) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failed(records: CountedRecords) -> None:
    raise RecordError("counted", records.at, "decode", "", "bad bytes")


def failed_awkwardly(records: CountedRecords) -> None:
    raise AwkwardError(records.at, "cannot read")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The client of two processes with one thread each; those that die are restarted."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}),  # on a busy machine, too
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, local_directory=folder, **ANY_PORT
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def notes(tmp_path: Path, cluster: Any) -> Path:
    """An empty folder, when all processes of the cluster run."""
    cluster.wait_for_workers(WORKERS, timeout=LIMIT_SECONDS)  # with a single one, the caller would write
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def _write(path: Path, records: CountedRecords, on_cluster: bool = True, **further: Any) -> dict[str, bytes]:
    """Write in shards of `SHARD_RECORDS` records; return the content of each file of the store."""
    backend = {"backend": "dask"} if on_cluster else {"backend": "threading"}
    with joblib.parallel_config(**backend):
        presave.write(path, records, jobs=-1, shard_nbytes=SHARD_RECORDS * 408, **further).close()
    return bytes_of(path)


def _shard_of(record: int) -> range:
    return range(first := record // SHARD_RECORDS * SHARD_RECORDS, first + SHARD_RECORDS)


@pytest.mark.parametrize("format", ["npy", "hdf5"])
def test_workers_and_threads_write_the_same_bytes(format: str, tmp_path: Path, notes: Path) -> None:
    records = CountedRecords(notes)
    there = _write(tmp_path / "there", records, format=format)
    assert records.reads() == dict.fromkeys(range(RECORDS), 1)
    assert there == _write(tmp_path / "here", records, on_cluster=False, format=format)


def test_a_failing_record_raises_in_the_caller_and_the_same_call_continues(tmp_path: Path, notes: Path) -> None:
    bad = CountedRecords(notes, 33, failed)
    with pytest.raises(RecordError, match="record 33 of counted: failed at stage 'decode': bad bytes") as caught:
        _write(tmp_path / "s", bad)
    assert caught.value.record == 33
    whole = {int(path.name[:5]) for path in (tmp_path / ".s.partial").glob("*.done.json")}
    assert whole
    before = bad.reads()
    there = _write(tmp_path / "s", CountedRecords(notes))
    again = {index for index, count in bad.reads().items() if count > before.get(index, 0)}
    assert 33 in again
    assert not again & {index for shard in whole for index in _shard_of(shard * SHARD_RECORDS)}
    assert there == _write(tmp_path / "here", CountedRecords(notes), on_cluster=False)


def test_an_error_that_cannot_be_unpickled_does_not_leave_the_caller_waiting(tmp_path: Path, notes: Path) -> None:
    with pytest.raises(presave.StoreError, match="records 32 to 35: AwkwardError: cannot read 33"):
        _write(tmp_path / "s", CountedRecords(notes, 33, failed_awkwardly))


def test_records_that_cannot_be_pickled_raise_an_error(tmp_path: Path, notes: Path) -> None:
    records = CountedRecords(notes)
    with (tmp_path / "open").open("w") as file:
        records.handle = file  # type: ignore[attr-defined]
        with pytest.raises(presave.StoreError, match="cannot be sent to other processes"):
            _write(tmp_path / "s", records)
    assert not list(tmp_path.glob("*s*partial"))


def test_records_that_workers_skip_are_listed_in_the_manifest(tmp_path: Path, notes: Path) -> None:
    _write(tmp_path / "s", CountedRecords(notes, 33, failed_awkwardly), on_error="skip")
    with presave.open_store(tmp_path / "s") as store:
        assert [(each.record, each.cause) for each in store.manifest.skipped] == [(33, "AwkwardError: cannot read 33")]
        assert store[33]["x"][0] == 34


def test_a_relative_path_is_relative_to_the_callers_folder(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes)
    _write(Path("s"), CountedRecords(notes))
    assert presave.verify(notes / "s") == []


def test_records_that_are_not_thread_safe_are_read_by_one_thread_of_a_worker_with_several(tmp_path: Path) -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=4, processes=False, local_directory=tmp_path, **ANY_PORT
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
        presave.write(tmp_path / "s", Records(Buffer(tmp_path)), jobs=-1, shard_nbytes=3 * 264) as store,
    ):
        assert [store[index]["features"].tolist() == pixels(index).tolist() for index in range(60)] == [True] * 60
        assert len(store.manifest.shards) == 20


def test_after_a_killed_worker_only_its_shard_is_written_again(tmp_path: Path, notes: Path) -> None:
    records = CountedRecords(notes, 18, killed_once)
    there = _write(tmp_path / "there", records)
    assert there == _write(tmp_path / "here", records, on_cluster=False)
    reads = records.reads()
    assert reads[18] == 2
    assert {index for index, count in reads.items() if count > 1} <= set(_shard_of(18))
    assert len(reads) == RECORDS


def test_a_shard_that_kills_every_worker_raises_an_error_that_names_its_records(tmp_path: Path, notes: Path) -> None:
    with pytest.raises(presave.StoreError, match="records 16 to 19: 3 worker processes died"):
        _write(tmp_path / "s", CountedRecords(notes, 18, killed_always))
    assert not (tmp_path / "s").exists()
