"""Writing the shards of a store in parallel through joblib: in threads, or in processes on this or other machines."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from presave.carrying import dumps
from presave.columns import ShardBuilder
from presave.content import add_record, content_of, digest_json, digest_record, format_content, origins_of
from presave.errors import StoreError, disk_errors, is_fault_of_record
from presave.files import checksum_bytes, write_atomically
from presave.manifest import Skipped
from presave.partial_store import (
    TASK_NAME,
    PartialStore,
    ShardFolder,
    SpanResult,
    aborted_error,
    is_stopped,
    load_origins,
    load_span_result,
)
from presave.random_seeds import BaseSeeds, draw_base_seeds, seed_process
from presave.schema import RecordSequence, Schema, validate_record
from presave.shard_formats import find_format
from presave.thread_safety import is_thread_safe, unopened

# After this many records, a worker checks if the write was given up. A check costs about as much as a small record.
RECORDS_BETWEEN_STOP_CHECKS = 16

OnError = Literal["raise", "skip"]

# Called when worker processes begin to write. Each returns a function that they call first, such as to take over
# settings that a library has in this process.
WORKER_PREPARATIONS: list[Callable[[], Callable[[], object]]] = []


@dataclass(frozen=True)
class Progress:
    """The progress of a write.

    Attributes
    ----------
    records : int
        Records on disk, including `resumed`.
    total : int
        Records in all.
    nbytes : int
        Bytes on disk.
    skipped : int
        Records that failed and were left out.
    resumed : int
        Records from an earlier, interrupted write.
    seconds : float
        Time since this write began.
    """

    records: int
    total: int
    nbytes: int
    skipped: int
    resumed: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Rate of this write, without resumed records; 0 before anything was written."""
        return (self.records - self.resumed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Time left at the rate so far; None before anything was written."""
        rate = self.records_per_second
        return (self.total - self.records - self.skipped) / rate if rate > 0 else None


@dataclass(frozen=True)
class SpanWriter:
    """Writes any span of records as one shard. It is pickled for workers in other processes.

    `folder`, that of the partial store, is absolute.
    """

    format: str
    folder: Path
    schema: Schema
    records: RecordSequence
    on_error: OnError
    options: dict[str, Any]

    def write(self, number: int, span: range) -> tuple[int, SpanResult]:
        """Write the records of `span` as shard `number`; return the number and the result."""
        builder = ShardBuilder(self.schema, len(span))
        skipped: list[Skipped] = []
        content, first = 0, None
        origins = origins_of(self.records, span)  # before the records are read
        with ShardFolder(self.folder, number, span) as shard:
            for index, arrays in self.read(self.records, span, skipped):
                builder.append(arrays)
                digest = digest_record(arrays)
                content, first = add_record(content, digest), first or (index, digest)
            columns = builder.columns() if builder.records else {}
            with disk_errors(shard.path, sum(column.nbytes for column in columns.values())):
                paths = []
                if columns:
                    paths = find_format(self.format).write_columns(shard.path, f"{number:05d}", columns, self.options)
                return number, shard.commit(
                    paths, builder.records, builder.elements, tuple(skipped), format_content(content), first, origins
                )

    def read(
        self, records: RecordSequence, span: range, skipped: list[Skipped]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield index and arrays of each record of `span`, and add those that fail to `skipped` if they may be skipped.

        Raises `StoreError` if the write was given up.
        """
        for index in span:
            if index % RECORDS_BETWEEN_STOP_CHECKS == 0 and is_stopped(self.folder):
                raise aborted_error(self.folder)
            try:
                arrays = validate_record(records[index], self.schema, index)
            except Exception as error:
                if self.on_error == "raise" or not is_fault_of_record(error):
                    raise
                skipped.append(Skipped(index, describe_error(error)))
            else:
                yield index, arrays

    def digest(self, index: int) -> int:
        """Read record `index` and return its digest."""
        return digest_record(validate_record(self.records[index], self.schema, index))


def write_spans(
    writer: SpanWriter,
    partial: PartialStore,
    spans: list[range],
    jobs: int,
    record_nbytes: int,
    examined: Mapping[int, int],
    progress: Callable[[Progress], None] | None,
) -> list[SpanResult]:
    """Write the spans that an earlier write did not complete, flush all, and return the result of each, in order.

    Raises `StoreError` if the earlier write stored other records.
    """
    # This thread flushes complete shards while others are being written. `PartialStore.finish` needs all flushed.
    flusher = ThreadPoolExecutor(1, "presave-flush")
    results = {
        number: earlier
        for number in range(len(spans))
        if (earlier := load_span_result(partial.folder, number)) is not None
    }
    _check_resumed(writer, partial, results, spans, jobs, examined)
    so_far = _advanced(Progress(0, len(writer.records), 0, 0, 0, 0.0), results.values(), 0.0)
    so_far = replace(so_far, resumed=so_far.records)
    missing = [number for number in range(len(spans)) if number not in results]
    if not writer.options.get("compression"):  # how far that goes is not known
        _check_free_space(partial, record_nbytes * sum(len(spans[number]) for number in missing))
    # Threads by default: decoders release the GIL, and nothing is pickled. parallel_config overrides `prefer`.
    # One shard a task, so that a killed process loses only the shard it was writing.
    in_threads = jobs_are_threads()
    if in_threads and not is_thread_safe(writer.records):
        jobs = 1
    import joblib  # here, since readers do not need it, and it takes a tenth of the time to import presave

    parallel = joblib.Parallel(n_jobs=jobs, prefer="threads", return_as="generator_unordered", batch_size=1)
    if in_threads:
        tasks = (joblib.delayed(writer.write)(number, spans[number]) for number in missing)
    else:
        file = _save_writer(writer)
        prepare = [each() for each in WORKER_PREPARATIONS]
        tasks = (joblib.delayed(_write_elsewhere)(file, prepare, number, spans[number]) for number in missing)
    finished = parallel(tasks)
    started = time.perf_counter()
    flushes = deque(flusher.submit(partial.flush, number, each) for number, each in results.items())
    try:
        for number, each in finished:
            results[number] = each
            flushes.append(flusher.submit(partial.flush, number, each))
            while flushes and flushes[0].done():  # a failed flush ends the write before more shards are written
                flushes.popleft().result()
            so_far = _advanced(so_far, [each], time.perf_counter() - started)
            if progress is not None:
                progress(so_far)
        for flushed in flushes:
            flushed.result()
    except BaseException:
        partial.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib warns that tasks are abandoned, as intended
            finished.close()
        raise
    finally:
        flusher.shutdown(cancel_futures=True)
    _check_origins(writer, partial, results, spans, jobs)
    return [results[number] for number in range(len(spans))]


def jobs_are_threads() -> bool:
    """Return True if jobs run in this process; False if joblib has a backend in force that sends them to others."""
    import joblib

    backend, _ = joblib.parallel.get_active_backend(prefer="threads")
    return bool(getattr(backend, "supports_sharedmem", False))


def _check_resumed(
    writer: SpanWriter,
    partial: PartialStore,
    results: dict[int, SpanResult],
    spans: list[range],
    jobs: int,
    examined: Mapping[int, int],
) -> None:
    """Raise `StoreError` if complete shards hold other records than those to be written.

    All records of a list are compared. Reading others may take long, so only those that are `examined` are compared,
    and the first record of the first complete shard.
    """
    is_list = isinstance(writer.records, (list, tuple)) and type(writer.records).__module__ == "builtins"
    _check_origins(writer, partial, results, spans, jobs)
    unknown = True
    for number, result in sorted(results.items()):
        if result.shard is None or result.first is None:  # all were skipped, or an earlier version wrote it
            continue
        index, stored = result.first
        if is_list:
            skipped = {each.record for each in result.skipped}
            digests = (writer.digest(each) for each in spans[number] if each not in skipped)
            is_same = content_of(digests) == result.shard.content
        elif unknown or index in examined:
            found = examined[index] if index in examined else writer.digest(index)
            # Random records differ from one reading to the next.
            is_same = found == stored or found != writer.digest(index)
        else:
            continue
        unknown = False
        if not is_same:
            raise StoreError(
                f"{writer.folder} holds the beginning of a store of other records: record {index}, or one of the "
                f"{len(spans[number]) - 1:,} after it, has changed since; delete that folder, then write again"
            )


def _check_origins(
    writer: SpanWriter, partial: PartialStore, results: dict[int, SpanResult], spans: list[range], jobs: int
) -> None:
    """Raise `StoreError` if records of complete shards are now read from something else, and differ.

    Their files may only have been linked, touched or copied. So shards with other origins are read again, several at
    once by as many threads as there are `jobs`, and `results` get the new origins of those that still hold their
    records. A record that cannot be read any more, and is not to be skipped, raises its own error.
    """
    changed = [
        number
        for number, result in sorted(results.items())
        if result.origins not in (None, digest_json(origins_of(writer.records, spans[number])))
    ]
    if not changed:
        return
    import joblib  # here, as in `write_spans`

    def read_again(number: int) -> str:
        return _read_again(writer, number, spans[number], results[number])

    threads = (jobs if jobs > 0 else joblib.cpu_count()) if is_thread_safe(writer.records) else 1
    with ThreadPoolExecutor(min(threads, len(changed)), "presave-read") as pool:
        try:
            # In order, so that the first shard that differs is the one that is named.
            found: Iterator[str] = map(read_again, changed) if threads == 1 else pool.map(read_again, changed)
            for number, origins in zip(changed, found, strict=True):
                results[number] = replace(results[number], origins=origins)
        except BaseException:
            partial.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read_again(writer: SpanWriter, number: int, span: range, result: SpanResult) -> str:
    """Return the digest of what the records of a complete shard are read from now; `StoreError` if they differ."""
    origins = origins_of(writer.records, span)  # before the records are read
    before, now = (dict(zip(span, each, strict=False)) for each in (load_origins(writer.folder, number), origins))
    index = next((each for each in span if before.get(each) != now.get(each)), span[0])
    unknown = "something that is not known"
    change = f"record {index} was read from {before.get(index, unknown)}, and now it is {now.get(index, unknown)}"
    if before.keys() == now.keys():
        skipped_now: list[Skipped] = []
        records = writer.read(unopened(writer.records), span, skipped_now)
        content = content_of(digest_record(arrays) for _, arrays in records)
        was, is_now = ({each.record: each.cause for each in some} for some in (result.skipped, skipped_now))
        other = next((each for each in span if was.get(each) != is_now.get(each)), None)
        if other is not None:
            change = f"record {other} was {_outcome(was.get(other))}, and would now be {_outcome(is_now.get(other))}"
        elif result.shard is None or result.shard.content == content:
            return digest_json(origins)
    raise StoreError(
        f"{writer.folder} holds the beginning of a store of other records: {change}; delete that folder, then write "
        "again"
    )


def _outcome(cause: str | None) -> str:
    return "stored" if cause is None else f"left out ({cause})"


def describe_error(error: BaseException | None) -> str:
    """Return the class and the message of an error, as the manifest keeps them for a skipped record."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class _WriterFile:
    """The path and checksum of a pickled `SpanWriter`, which may be too large to be sent with every task.

    Attributes
    ----------
    path : Path
        A file in a folder that all workers share.
    xxh3_128 : str
        Checksum of its content.
    seeds : BaseSeeds
        Seeds the global random generators of workers, together with the number of a span.
    pid : int
        The process that writes the store, whose generators stay as they are.
    """

    path: Path
    xxh3_128: str
    seeds: BaseSeeds
    pid: int


def _save_writer(writer: SpanWriter) -> _WriterFile:
    try:
        data = dumps(writer)
    except Exception as error:
        raise StoreError(
            f"the records cannot be sent to other processes ({error}); remove open files, locks and the like from them"
        ) from error
    path = writer.folder / TASK_NAME
    with disk_errors(path, len(data)):
        write_atomically(path, data)
    return _WriterFile(path, checksum_bytes(data), draw_base_seeds(), os.getpid())


# Held while a thread of a worker process loads its writer, so that all share one.
_loading = threading.Lock()


@lru_cache(maxsize=1)
def _load_writer(file: _WriterFile) -> Callable[[int, range], tuple[int, SpanResult]]:
    """Return `SpanWriter.write`, loaded once in each process; raise `StoreError` if the file has changed."""
    data = file.path.read_bytes()
    if checksum_bytes(data) != file.xxh3_128:
        raise StoreError(f"{file.path} was changed while the store was written; write again")
    writer: SpanWriter = pickle.loads(data)  # noqa: S301 - the checksum proves that this write made these bytes
    if is_thread_safe(writer.records):
        return writer.write
    thread = ThreadPoolExecutor(1, "presave-read")  # reads for all threads of this process
    return lambda number, span: thread.submit(writer.write, number, span).result()


def _write_elsewhere(
    file: _WriterFile, prepare: Sequence[Callable[[], object]], number: int, span: range
) -> tuple[int, SpanResult]:
    """Write a span in a worker process, which may be killed, and raise only errors that can be unpickled.

    `prepare` is called before the records are read, since the process may have written others.
    """
    # An earlier worker may have written the shard and been killed before it returned the result.
    earlier = load_span_result(file.path.parent, number)
    if earlier is not None:
        return number, earlier
    try:
        with _loading:
            write = _load_writer(file)
        for each in prepare:  # only now, because unpickling may import modules that have settings of their own
            each()
        if os.getpid() != file.pid:  # a worker may also be a thread
            seed_process(file.seeds, number)
        return write(number, span)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled on the same line
        except Exception:  # noqa: BLE001 - the constructor of a foreign error class may raise anything
            raise StoreError(f"records {span[0]} to {span[-1]}: {describe_error(error)}") from None
        raise


def _check_free_space(partial: PartialStore, nbytes: int) -> None:
    usage = shutil.disk_usage(partial.folder)
    if nbytes > usage.free and usage.total:  # 0 if it is not known
        raise StoreError(
            f"{partial.target} needs about {nbytes:,} bytes more and {usage.free:,} bytes are free there; make room or "
            "choose another disk"
        )


def _advanced(before: Progress, results: Collection[SpanResult], seconds: float) -> Progress:
    """Return the progress after `seconds`, when `results` are on disk, too."""
    shards = [each.shard for each in results if each.shard is not None]
    return replace(
        before,
        records=before.records + sum(shard.records for shard in shards),
        nbytes=before.nbytes + sum(file.nbytes for shard in shards for file in shard.files),
        skipped=before.skipped + sum(len(each.skipped) for each in results),
        seconds=seconds,
    )
