"""Writing a store: shards in parallel through joblib, into a temporary folder that is renamed when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np

from presave.errors import StoreError
from presave.formats import Format, find_format
from presave.manifest import Manifest, Shard, json_values, save_manifest
from presave.schema import RecordSequence, Schema, conform, infer_schema
from presave.store import Store, open_store

# Enough shards for jobs to share and for progress to move, few enough that each is worth opening.
SHARDS_AIMED_AT = 64
SMALLEST_SHARD_NBYTES = 4 << 20
LARGEST_SHARD_NBYTES = 256 << 20

# How often a worker looks whether the write was given up. A look costs a system call, about as much as a small record.
RECORDS_BETWEEN_LOOKS = 16
DELETIONS = 100


@dataclass(frozen=True)
class Progress:
    """How far a write has come: records and bytes on disk, of so many records."""

    records: int
    total: int
    nbytes: int


def write(
    path: str | Path,
    records: RecordSequence,
    *,
    format: str = "npy",
    jobs: int = 1,
    shard_nbytes: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Write `records` (`len`, `[i]` giving a mapping of field name to array or number) as a store; returns it open.

    Shards of about `shard_nbytes` bytes (by default a 64th of all, from 4 to 256 MiB) are written by `jobs` threads, or
    under `joblib.parallel_config(backend=...)` by whatever that offers; then `records` must be picklable. The bytes do
    not depend on `jobs`. `progress` is called in this thread after each shard. Where `records` has attributes `stage`,
    `fingerprint` or `provenance`, the manifest keeps them.

    Until the last byte is on disk there is nothing at `path`. Raises `StoreError` where something is at `path` already,
    the format is unknown, there are no records, or one of them is not like the first; and whatever `records[i]`
    raises. After an error, and after Ctrl-C, nothing is left behind.
    """
    target = Path(path)
    chosen = find_format(format)
    if target.exists() or target.is_symlink():
        raise StoreError(f"{target} exists already; delete it or choose another path")
    if len(records) == 0:
        raise StoreError(f"there are no records to write to {target}")
    if shard_nbytes is not None and shard_nbytes < 1:
        raise StoreError(f"shard_nbytes must be at least 1, not {shard_nbytes}")
    if jobs == 0:
        raise StoreError("jobs must be at least 1, or -1 for one a CPU; it is 0")
    provenance = json_values(getattr(records, "provenance", {}))
    schema = infer_schema(records[0])
    spans = _spans(len(records), schema, shard_nbytes)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        shards = _write_shards(chosen, folder, schema, records, spans, jobs, progress)
        manifest = Manifest(
            format=format,
            fields=tuple(schema.values()),
            shards=shards,
            stage=getattr(records, "stage", None),
            fingerprint=getattr(records, "fingerprint", None),
            provenance=provenance,
        )
        save_manifest(manifest, folder)
        folder.chmod(0o755)  # mkdtemp makes it private to its owner, as a store should not be
        _flush_folder(folder)
        os.rename(folder, target)
    except BaseException:
        _discard(folder)
        raise
    _flush_folder(target.parent)
    return open_store(target)


def _spans(count: int, schema: Schema, shard_nbytes: int | None) -> list[range]:
    record_nbytes = sum(field.record_nbytes for field in schema.values())
    if shard_nbytes is None:
        aimed = count * record_nbytes // SHARDS_AIMED_AT
        shard_nbytes = min(max(aimed, SMALLEST_SHARD_NBYTES), LARGEST_SHARD_NBYTES)
    shard_records = max(1, shard_nbytes // max(1, record_nbytes))
    return [range(first, min(first + shard_records, count)) for first in range(0, count, shard_records)]


def _write_shards(
    format: Format,
    folder: Path,
    schema: Schema,
    records: RecordSequence,
    spans: list[range],
    jobs: int,
    progress: Callable[[Progress], None] | None,
) -> tuple[Shard, ...]:
    # Threads by default: decoders release the GIL, and nothing is pickled. `prefer` gives way to parallel_config.
    parallel = joblib.Parallel(n_jobs=jobs, prefer="threads", return_as="generator_unordered")
    tasks = (
        joblib.delayed(_write_shard)(format.name, folder, number, schema, records, span)
        for number, span in enumerate(spans)
    )
    shards: dict[int, Shard] = {}
    written = nbytes = 0
    finished = parallel(tasks)
    try:
        for number, shard in finished:
            shards[number] = shard
            written += shard.records
            nbytes += sum(file.nbytes for file in shard.files)
            if progress is not None:
                progress(Progress(written, len(records), nbytes))
    except BaseException:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that tasks are given up, which is what is wanted here
            finished.close()
        raise
    return tuple(shards[number] for number in range(len(spans)))


def _write_shard(
    format_name: str, folder: Path, number: int, schema: Schema, records: RecordSequence, span: range
) -> tuple[int, Shard]:
    def rows() -> Iterator[dict[str, np.ndarray]]:
        for index in span:
            if index % RECORDS_BETWEEN_LOOKS == 0 and not folder.exists():
                raise StoreError(f"{folder} was discarded: another shard failed, or the write was interrupted")
            yield conform(records[index], schema, index)

    return number, find_format(format_name).write_shard(folder, number, schema, len(span), rows())


def _discard(folder: Path) -> None:
    # Other workers may be in the middle of a shard. Where the folder has gone by its name they can add no file to it,
    # and stop. A file whose creation had begun may still appear, at most one a worker, hence the repetition.
    discarded = folder.with_name(f"{folder.name.removesuffix('.partial')}.discarded.partial")
    with contextlib.suppress(OSError):  # the error that led here is the one to be raised
        os.rename(folder, discarded)
        for _ in range(DELETIONS):
            shutil.rmtree(discarded, ignore_errors=True)
            if not discarded.exists():
                break


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
