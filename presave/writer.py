"""Writing a store: check the arguments, read a few records, plan the shards, and write them in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from presave.content import difference, digest_record, identity_of, json_values
from presave.errors import StoreError, is_fault_of_record
from presave.manifest import Manifest
from presave.parallel_write import OnError, Progress, SpanWriter, describe_error, jobs_are_threads, write_spans
from presave.partial_store import PartialStore, remove_leftovers
from presave.schema import Record, RecordSequence, Schema, infer_schema, validate_record
from presave.shard_formats import Format, check_options, find_format
from presave.store import Store, open_store, ragged_of
from presave.thread_safety import unopened

# Enough shards to divide among jobs and to show progress, but few enough that opening each is cheap.
TARGET_SHARDS = 64
MIN_SHARD_NBYTES = 4 << 20
MAX_SHARD_NBYTES = 256 << 20

SAMPLED_RECORDS = 8


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
    """Write records to disk as a store.

    Parameters
    ----------
    path : str or Path
        Folder of the new store. It must not exist. Paths below `~`, which only a shell expands, are refused.
    records : sequence of mappings
        Anything with `len(records)` and `records[index]`, which returns a mapping of field name to array or number. If
        it has attributes `stage` or `fingerprint`, which are text, or `provenance`, the manifest keeps them. An
        attribute `identity`, a mapping of names to JSON values such as sizes and times of files, identifies what the
        records are read from: it must not change during the write, nor until an interrupted one is resumed. A method
        `origin(index)` returns that of a single record as text: only a complete shard with other origins than before is
        read again, and must not have changed. An attribute `digests`, of which the manifest keeps the values at the
        end, is for the readers of the store.
    format : str
        Storage format, one of `presave.formats()`.
    jobs : int
        Number of shards that are written at once; -1 for one per CPU. Each job holds one shard in memory. One, if jobs
        would be threads and `records` does not allow that (see Notes).
    shard_nbytes : int, optional
        Approximate size of a shard in bytes; by default a 64th of the store, but at least 4 MiB and at most 256 MiB.
    ragged : collection of str, optional
        Names of fields whose shape differs between records; by default those of a store, or `records.ragged`, if there
        is such an attribute, also of what a torch `Subset` chooses from. The name "x" also covers the fields "x.0",
        "x.1" and so on, unless they are scalars.
    on_error : "raise" or "skip"
        With "raise", a record that fails stops the write. With "skip", it is left out and listed in the manifest,
        unless it is not at fault: too many open files, too little memory, a failing disk, a missing package.
    options : mapping of str to object, optional
        Options of the format, for example `{"compression": "zstd"}` for "hdf5".
    progress : callable, optional
        Called with a `Progress` in the calling thread after each shard.

    Returns
    -------
    Store
        The new store, open.

    Raises
    ------
    StoreError
        If `path` exists, the format or an option is unknown, there are no records, or they are not read by number, a
        record differs from the first in its fields, dtypes or shapes, the disk fails or has too little room, the
        identity of the records changes, or `.NAME.partial` is the beginning of another store, or of one whose records
        have changed since.
    Exception
        Anything that `records[index]` raises; with `on_error="skip"`, what is not the record's fault.

    Notes
    -----
    The bytes of the store do not depend on `jobs`. Jobs are threads by default, if `records` is a list, a tuple, an
    array, a store or a torch `Subset` of one, or has an attribute `thread_safe` that is true: several threads may then
    read at once. Records of any other class may share an open file or a buffer, so the calling thread alone reads them.
    Under `joblib.parallel_config(backend=...)` jobs run on that backend. If it uses other processes, one thread of each
    reads such records, `records` must be picklable and all workers must share the folder.

    Nothing appears at `path` before the last byte is on the disk. An interrupted write leaves its complete shards in a
    folder `.NAME.partial` beside `path`. The same call continues from there and gives the same bytes as an
    uninterrupted write. If `records` is a list, it is compared with the complete shards first. Of other records without
    an identity, only the first is compared.

    Examples
    --------
    >>> records = [{"image": np.full((8, 8), i, np.uint8), "label": i} for i in range(100)]
    >>> with presave.write("images.store", records, jobs=2) as store:
    ...     batch = store.gather([3, 1, 2])
    >>> batch["image"].shape
    (3, 8, 8)
    """
    target = Path(path)
    if target.parts[:1] == ("~",):
        raise StoreError(
            f"{target} is in a folder called ~ here; for your home folder, pass os.path.expanduser({str(target)!r})"
        )
    chosen = find_format(format)
    check_options(chosen, options or {})
    if target.exists() or target.is_symlink():
        remove_leftovers(target)
        raise StoreError(f"{target} exists already; delete it or choose another path")
    _check_numbered(records)
    if len(records) == 0:
        raise StoreError(f"there are no records to write to {target}")
    if shard_nbytes is not None and shard_nbytes < 1:
        raise StoreError(f"shard_nbytes must be at least 1, not {shard_nbytes}")
    if jobs == 0:
        raise StoreError("jobs must be at least 1, or -1 for one per CPU, not 0")
    if on_error not in ("raise", "skip"):
        raise StoreError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
    facts = json_values(
        {
            "format": format,
            "stage": getattr(records, "stage", None),
            "fingerprint": getattr(records, "fingerprint", None),
            "provenance": json_values(getattr(records, "provenance", {}), "provenance"),
            "options": options or {},
        },
        "description",
    )
    for name in ("stage", "fingerprint"):
        if facts[name] is not None and not isinstance(facts[name], str):  # no manifest with it could be read
            raise StoreError(
                f"the {name} of the records is {facts[name]!r}, which is not text; make it text or rename it"
            )
    names = ragged_of(records) if ragged is None else ragged
    if isinstance(names, str):
        raise StoreError(f"ragged is a collection of names, such as [{names!r}]")
    identity = identity_of(records)
    # Reading may open a file, and then the records could not be sent to other processes.
    sampled = records if jobs_are_threads() else unopened(records)
    schema, record_nbytes, examined = _examine(sampled, frozenset(names), on_error)
    spans = _plan_spans(len(records), record_nbytes, shard_nbytes, chosen)
    plan = {
        **facts,
        "fields": {name: str(field) for name, field in schema.items()},
        "records": len(records),
        "shard_records": len(spans[0]),
        "on_error": on_error,
    }
    with PartialStore(target, plan, identity) as partial:
        writer = SpanWriter(format, partial.folder.absolute(), schema, records, on_error, dict(options or {}))
        results = write_spans(writer, partial, spans, jobs, record_nbytes, examined, progress)
        digests = json_values(getattr(records, "digests", {}), "digests")
        manifest = Manifest(
            format=format,
            fields=tuple(schema.values()),
            shards=tuple(each.shard for each in results if each.shard is not None),
            stage=facts["stage"],
            fingerprint=facts["fingerprint"],
            provenance={**facts["provenance"], **({"digests": digests} if digests else {})},
            options=facts["options"],
            skipped=tuple(skipped for each in results for skipped in each.skipped),
        )
        if not manifest.shards:
            partial.discard()
            raise StoreError(f"all {len(records)} records failed; the first: {manifest.skipped[0].cause}")
        if (now := identity_of(records)) != identity:
            raise StoreError(
                f"{target} was not written, because its records changed meanwhile: {difference(identity, now)}; delete "
                f"{partial.folder}, then write again"
            )
        partial.finish(manifest)
    try:
        return open_store(target, trusted=True)  # trusted: this process has just written it
    except (StoreError, OSError) as error:
        raise StoreError(f"{target} is written and complete but cannot be opened: {error}") from error


def _check_numbered(records: Any) -> None:
    """Raise `StoreError` if records cannot be read by number: of a path, a stream, or a mapping of names."""
    if isinstance(records, (str, bytes, os.PathLike)):
        raise StoreError(f"{os.fspath(records)!r} is a path, not a sequence of records; open it first")
    has_names = isinstance(records, Mapping) and isinstance(next(iter(records), ""), str)
    if has_names or not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
        raise StoreError(
            f"a {type(records).__name__} is not a sequence of records, which are read by number; pass an object with "
            "len(records) and records[index], such as a list of mappings"
        )


def _examine(records: RecordSequence, ragged: Collection[str], on_error: OnError) -> tuple[Schema, int, dict[int, int]]:
    """Return the schema, the size in bytes of a typical record, and the digests of the records that were read.

    The size is that of the first record, or with ragged fields the mean over a few records.
    """
    first, record, schema = _first_valid(records, ragged, on_error)
    arrays = validate_record(record, schema, first)
    nbytes, examined = [sum(array.nbytes for array in arrays.values())], {first: digest_record(arrays)}
    sampled = np.linspace(first, len(records) - 1, SAMPLED_RECORDS).astype(int).tolist() if ragged else []
    for index in sorted(set(sampled) - {first}):
        try:
            arrays = validate_record(records[index], schema, index)
        except Exception as error:
            if on_error == "raise" or not is_fault_of_record(error):
                raise
        else:
            nbytes.append(sum(array.nbytes for array in arrays.values()))
            examined[index] = digest_record(arrays)
    return schema, max(1, round(sum(nbytes) / len(nbytes))), examined


def _first_valid(records: RecordSequence, ragged: Collection[str], on_error: OnError) -> tuple[int, Record, Schema]:
    """Return the index of the first record that can be stored, the record, and its schema."""
    first_error: Exception | None = None
    for index in range(len(records)):
        try:
            record = records[index]
            return index, record, infer_schema(record, ragged, index)
        except Exception as error:
            if on_error == "raise" or not is_fault_of_record(error):
                raise
            first_error = first_error or error
    raise StoreError(f"all {len(records)} records failed; the first: {describe_error(first_error)}") from first_error


def _plan_spans(count: int, record_nbytes: int, shard_nbytes: int | None, format: Format) -> list[range]:
    """Divide `count` records into the spans that become shards."""
    if shard_nbytes is None:
        target_nbytes = count * record_nbytes // TARGET_SHARDS
        shard_nbytes = min(max(target_nbytes, MIN_SHARD_NBYTES), MAX_SHARD_NBYTES)
    shard_records = format.shard_records or max(1, shard_nbytes // record_nbytes)
    return [range(first, min(first + shard_records, count)) for first in range(0, count, shard_records)]
