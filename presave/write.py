"""Writing a store: shards in parallel through joblib, in a folder beside its place, moved there when it is whole."""

from __future__ import annotations

import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np

from presave.columns import ShardBuilder
from presave.disk_errors import disk_errors
from presave.errors import StoreError
from presave.formats import Format, check_options, find_format
from presave.manifest import Manifest, Skipped, json_values
from presave.schema import Record, RecordSequence, Schema, conform, infer_schema
from presave.store import Store, open_store
from presave.unfinished import Done, ShardFolder, Unfinished, find_done, given_up, is_stopped, remove_remains
from presave.work_file import WorkFile, save_work

# Enough shards for jobs to share and for progress to move, few enough that each is worth opening.
SHARDS_AIMED_AT = 64
SMALLEST_SHARD_NBYTES = 4 << 20
LARGEST_SHARD_NBYTES = 256 << 20

# How often a worker looks whether the write was given up. A look costs a system call, about as much as a small record.
RECORDS_BETWEEN_LOOKS = 16
SAMPLED_RECORDS = 8

OnError = Literal["raise", "skip"]


@dataclass(frozen=True)
class Progress:
    """How far a write has come: records and bytes on disk, of so many records, and for how long it has run.

    `resumed` of the records were there from an earlier, interrupted write; `skipped` were left out.
    """

    records: int
    total: int
    nbytes: int
    skipped: int
    resumed: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Of this run, without what was there before; 0 before anything was written."""
        return (self.records - self.resumed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far; None before there is one."""
        rate = self.records_per_second
        return (self.total - self.records - self.skipped) / rate if rate > 0 else None


def write(
    path: str | Path,
    records: RecordSequence,
    *,
    format: str = "npy",
    jobs: int = 1,
    shard_nbytes: int | None = None,
    ragged: Collection[str] | None = None,
    on_error: OnError = "raise",
    options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Write `records` (`len`, `[i]` giving a mapping of field name to array or number) as a store; returns it open.

    Fields named in `ragged` (or in `records.ragged`) may have another size in each record; "x" stands for all of
    "x.0", "x.1" and so on that have an axis. Shards of about
    `shard_nbytes` bytes (by default a 64th of all, from 4 to 256 MiB) are written by `jobs` threads, or under
    `joblib.parallel_config(backend=...)` by whatever that offers; then `records` must be picklable and the folder one
    that all workers share. Each job holds one shard in memory. The bytes do not depend on `jobs`. `options` are the
    format's own. `progress` is called in this thread after each shard. Where `records` has attributes `stage`,
    `fingerprint` or `provenance`, the manifest keeps them.

    Until the last byte is on disk there is nothing at `path`. An interrupted write leaves its whole shards beside it,
    in `.NAME.partial`, and the same call goes on from there to the same bytes. A record that fails stops the write, or
    with `on_error="skip"` is left out and listed in the manifest.

    Raises `StoreError` where something is at `path` already, the format or an option is unknown, there are no records,
    one of them is not like the first, the disk has too little room or fails, or `.NAME.partial` is the beginning of
    another store; and whatever `records[i]` raises.
    """
    target = Path(path)
    chosen = find_format(format)
    check_options(chosen, options or {})
    if target.exists() or target.is_symlink():
        remove_remains(target)
        raise StoreError(f"{target} exists already; delete it or choose another path")
    if len(records) == 0:
        raise StoreError(f"there are no records to write to {target}")
    if shard_nbytes is not None and shard_nbytes < 1:
        raise StoreError(f"shard_nbytes must be at least 1, not {shard_nbytes}")
    if jobs == 0:
        raise StoreError("jobs must be at least 1, or -1 for one a CPU; it is 0")
    if on_error not in ("raise", "skip"):
        raise StoreError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
    facts = json_values(
        {
            "format": format,
            "stage": getattr(records, "stage", None),
            "fingerprint": getattr(records, "fingerprint", None),
            "provenance": json_values(getattr(records, "provenance", {})),
            "options": options or {},
        }
    )
    ragged = frozenset(getattr(records, "ragged", ()) if ragged is None else ragged)
    schema, record_nbytes = _look_at(records, ragged, on_error)
    spans = _spans(len(records), record_nbytes, shard_nbytes, chosen)
    plan = {
        **facts,
        "fields": {name: str(field) for name, field in schema.items()},
        "records": len(records),
        "shard_records": len(spans[0]),
        "on_error": on_error,
    }
    with Unfinished(target, plan) as unfinished:
        work = _Work(format, unfinished.folder.absolute(), schema, records, on_error, dict(options or {}))
        done = _write_spans(work, unfinished, spans, jobs, record_nbytes, progress)
        manifest = Manifest(
            format=format,
            fields=tuple(schema.values()),
            shards=tuple(each.shard for each in done if each.shard is not None),
            stage=facts["stage"],
            fingerprint=facts["fingerprint"],
            provenance=facts["provenance"],
            options=facts["options"],
            skipped=tuple(skipped for each in done for skipped in each.skipped),
        )
        if not manifest.shards:
            unfinished.discard()
            raise StoreError(f"all {len(records)} records failed; the first: {manifest.skipped[0].cause}")
        unfinished.finish(manifest)
    try:
        return open_store(target, trusted=True)  # it was made here
    except (StoreError, OSError) as error:
        raise StoreError(f"{target} is written, and whole, but cannot be opened: {error}") from error


@dataclass(frozen=True)
class _Work:
    """What a worker must know to write any span."""

    format: str
    folder: Path
    schema: Schema
    records: RecordSequence
    on_error: OnError
    options: dict[str, Any]


def _look_at(records: RecordSequence, ragged: Collection[str], on_error: OnError) -> tuple[Schema, int]:
    """The schema, and the bytes of a typical record: the first, or where fields are ragged the mean of a few."""
    first, record, schema = _first_good(records, ragged, on_error)
    nbytes = [sum(array.nbytes for array in conform(record, schema, first).values())]
    sampled = np.linspace(first, len(records) - 1, SAMPLED_RECORDS).astype(int).tolist() if ragged else []
    for number in sorted(set(sampled) - {first}):
        try:
            nbytes.append(sum(array.nbytes for array in _read(records, schema, number).values()))
        except Exception:
            if on_error == "raise":
                raise
    return schema, max(1, round(sum(nbytes) / len(nbytes)))


def _first_good(records: RecordSequence, ragged: Collection[str], on_error: OnError) -> tuple[int, Record, Schema]:
    """The number of the first record that can be stored, the record, and its schema."""
    first_error: Exception | None = None
    for number in range(len(records)):
        try:
            record = records[number]
            return number, record, infer_schema(record, ragged, number)
        except Exception as error:
            if on_error == "raise" or isinstance(error, MemoryError):
                raise
            first_error = first_error or error
    raise StoreError(f"all {len(records)} records failed; the first: {_cause(first_error)}") from first_error


def _spans(count: int, record_nbytes: int, shard_nbytes: int | None, format: Format) -> list[range]:
    if shard_nbytes is None:
        aimed = count * record_nbytes // SHARDS_AIMED_AT
        shard_nbytes = min(max(aimed, SMALLEST_SHARD_NBYTES), LARGEST_SHARD_NBYTES)
    shard_records = format.shard_records or max(1, shard_nbytes // record_nbytes)
    return [range(first, min(first + shard_records, count)) for first in range(0, count, shard_records)]


def _write_spans(
    work: _Work,
    unfinished: Unfinished,
    spans: list[range],
    jobs: int,
    record_nbytes: int,
    progress: Callable[[Progress], None] | None,
) -> list[Done]:
    # Written to the disk beside the making of further shards; the store takes its place only when all of it is there.
    flusher = ThreadPoolExecutor(1, "presave-flush")
    done = {number: earlier for number in range(len(spans)) if (earlier := unfinished.done(number)) is not None}
    resumed = sum(each.shard.records for each in done.values() if each.shard is not None)
    missing = [number for number in range(len(spans)) if number not in done]
    _check_room(unfinished, record_nbytes * sum(len(spans[number]) for number in missing))
    # Threads by default: decoders release the GIL, and nothing is pickled. `prefer` gives way to parallel_config.
    # One shard a task: a process that is killed loses what it has begun.
    parallel = joblib.Parallel(n_jobs=jobs, prefer="threads", return_as="generator_unordered", batch_size=1)
    backend, _ = joblib.parallel.get_active_backend(prefer="threads")
    if getattr(backend, "supports_sharedmem", False):
        tasks = (joblib.delayed(_write_span)(work, number, spans[number]) for number in missing)
    else:
        file = save_work(work, work.folder)
        tasks = (joblib.delayed(_write_span_elsewhere)(file, number, spans[number]) for number in missing)
    finished = parallel(tasks)
    started = time.perf_counter()
    flushes = [flusher.submit(unfinished.flush, number, each) for number, each in done.items()]
    try:
        for number, each in finished:
            done[number] = each
            flushes.append(flusher.submit(unfinished.flush, number, each))
            if progress is not None:
                progress(_progress(done, len(work.records), resumed, time.perf_counter() - started))
        for flushed in flushes:
            flushed.result()
    except BaseException:
        unfinished.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that tasks are given up, which is what is wanted here
            finished.close()
        raise
    finally:
        flusher.shutdown(cancel_futures=True)
    return [done[number] for number in range(len(spans))]


def _write_span(work: _Work, number: int, span: range) -> tuple[int, Done]:
    builder = ShardBuilder(work.schema, len(span))
    skipped = []
    with ShardFolder(work.folder, number, span) as shard:
        for index in span:
            if index % RECORDS_BETWEEN_LOOKS == 0 and is_stopped(work.folder):
                raise given_up(work.folder)
            try:
                arrays = _read(work.records, work.schema, index)
            except Exception as error:
                if work.on_error == "raise" or isinstance(error, MemoryError):
                    raise
                skipped.append(Skipped(index, _cause(error)))
            else:
                builder.append(arrays)
        columns = builder.columns() if builder.records else {}
        with disk_errors(shard.path, sum(column.nbytes for column in columns.values())):
            paths = []
            if columns:
                paths = find_format(work.format).write_columns(shard.path, f"{number:05d}", columns, work.options)
            return number, shard.commit(paths, builder.records, builder.elements, tuple(skipped))


def _write_span_elsewhere(file: WorkFile, number: int, span: range) -> tuple[int, Done]:
    """`_write_span` in another process, which may be killed, and whose errors must survive being pickled."""
    # The worker that wrote it may have been killed before it could say so.
    earlier = find_done(file.path.parent, number)
    if earlier is not None:
        return number, earlier
    try:
        return _write_span(file.load(), number, span)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line above
        except Exception:  # noqa: BLE001 - a class of somebody else's may raise anything
            raise StoreError(f"records {span[0]} to {span[-1]}: {_cause(error)}") from None
        raise


def _read(records: RecordSequence, schema: Schema, index: int) -> dict[str, np.ndarray]:
    record: Record = records[index]
    return conform(record, schema, index)


def _cause(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


def _check_room(unfinished: Unfinished, nbytes: int) -> None:
    free = shutil.disk_usage(unfinished.folder).free
    if nbytes > free:
        raise StoreError(
            f"{unfinished.target} needs about {nbytes:,} bytes more and {free:,} bytes are free there; make room or "
            "choose another disk"
        )


def _progress(done: Mapping[int, Done], total: int, resumed: int, seconds: float) -> Progress:
    shards = [each.shard for each in done.values() if each.shard is not None]
    return Progress(
        records=sum(shard.records for shard in shards),
        total=total,
        nbytes=sum(file.nbytes for shard in shards for file in shard.files),
        skipped=sum(len(each.skipped) for each in done.values()),
        resumed=resumed,
        seconds=seconds,
    )
