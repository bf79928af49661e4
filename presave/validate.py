"""Validation of a manifest that may be forged: every value must have its type, and the sizes must be possible.

Reading a store allocates memory for as many records as its manifest claims. So nothing is read before the checks pass.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from presave.columns import Column, shard_columns
from presave.manifest import Manifest, Shard, Skipped, StoredFile
from presave.schema import MAX_SAFE_NAME_LENGTH, Field

MAX_INT64 = 2**63 - 1
DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
CONTENT = re.compile(r"[0-9a-f]{32}")
MAX_AXES = 32
MAX_DEPTH = 32

# HDF5 compresses chunks of one row, or of several rows of together at most 64 KiB, to at least 16 bytes each. So, if a
# larger row counts as 64 KiB, a file holds at most 4096 times its size.
COMPRESSING_FORMAT, COMPRESSED_NBYTES, MAX_COMPRESSION = "hdf5", 64 << 10, 4096
# A compressing file system may hold this many times the size of its disk.
MAX_DISK_COMPRESSION = 16


def parse_manifest(content: dict[str, Any]) -> Manifest:
    """Return the manifest in these JSON values.

    Raises
    ------
    ValueError, TypeError, KeyError, AttributeError, RecursionError
        If they are not a manifest, or contradict each other.
    """
    fields = tuple(parse_field(each) for each in content["fields"])
    shards = tuple(parse_shard(each) for each in content["shards"])
    ragged = {each.name for each in fields if each.is_ragged}
    if any(shard.elements.keys() != ragged for shard in shards):
        names = ", ".join(sorted(ragged)) or "none"
        raise ValueError(f"a shard does not count the elements of exactly the ragged fields: {names}")
    if len({each.name for each in fields}) < len(fields):
        raise ValueError("two fields have the same name")
    _check_depth(content["provenance"], MAX_DEPTH)
    _check_depth(content["options"], MAX_DEPTH)
    return Manifest(
        format=_text(content["format"]),
        fields=fields,
        shards=shards,
        stage=None if content["stage"] is None else _text(content["stage"]),
        fingerprint=None if content["fingerprint"] is None else _text(content["fingerprint"]),
        provenance=dict(content["provenance"]),
        options=dict(content["options"]),
        skipped=tuple(Skipped(whole_number(each["record"]), _text(each["cause"])) for each in content["skipped"]),
    )


def parse_field(content: dict[str, Any]) -> Field:
    """Return the field in these JSON values; raise `ValueError` or a similar error if they are not a field."""
    shape = tuple(None if size is None else whole_number(size) for size in content["shape"])
    found = Field(_text(content["name"]), _text(content["dtype"]), shape)
    sizes = [size for size in shape if size is not None]
    # The regular expression comes first: numpy's parser accepts much more than a store may hold.
    is_known = DTYPE.fullmatch(found.dtype) and found.numpy_dtype.kind in "biufc" and len(shape) <= MAX_AXES
    if not is_known or 0 in sizes or (sizes and found.is_ragged):
        raise ValueError(f"field {found.name!r} has dtype {found.dtype:.20} and shape {shape[: MAX_AXES + 1]}")
    if not 0 < len(found.safe_name) <= MAX_SAFE_NAME_LENGTH:
        raise ValueError(f"field name {found.name[:MAX_SAFE_NAME_LENGTH]!r}")
    return found


def parse_shard(content: dict[str, Any]) -> Shard:
    """Return the shard in these JSON values; raise `ValueError` or a similar error if they are not a shard."""
    files = tuple(
        StoredFile(_text(file["name"]), whole_number(file["nbytes"]), _text(file["xxh3_128"]))
        for file in content["files"]
    )
    elements = {name: whole_number(count) for name, count in content["elements"].items()}
    identity = content.get("content")
    if identity is not None and not CONTENT.fullmatch(_text(identity)):
        raise ValueError(f"a shard has content {identity:.40}")
    shard = Shard(whole_number(content["records"]), files, elements, identity)
    if shard.records < 1:
        raise ValueError(f"a shard of {shard.records} records and {elements} elements")
    for file in files:
        if PurePath(file.name).name != file.name or file.name in ("", ".", ".."):
            raise ValueError(f"file name {file.name!r} leaves the store's folder")
        if not file.name.isprintable():  # a null character, or half of a surrogate pair
            raise ValueError(f"file name {file.name!r} is not text")
    return shard


def whole_number(value: Any) -> int:
    """Return `value` if it is an integer from 0 to 2**63 - 1; raise `ValueError` for any other JSON value."""
    if type(value) is not int or not 0 <= value <= MAX_INT64:
        raise ValueError(f"{str(value)[:40]} is not a whole number from 0 to {MAX_INT64:,}")
    return value


def check_sizes(manifest: Manifest, folder: Path) -> None:
    """Raise `ValueError` if a shard's files are too small for its records, or the disk for files that are not there."""
    compresses = manifest.format == COMPRESSING_FORMAT
    ragged = [field.name for field in manifest.fields if field.is_ragged]
    # Computed once for all shards, of which there may be thousands: the sizes of one record and of one element.
    columns = shard_columns(manifest.schema, 1, dict.fromkeys(ragged, 0))
    record_nbytes = _min_nbytes(columns, compresses)
    unpacked_nbytes = _min_nbytes(columns, compresses=False)
    itemsizes = {field.name: field.numpy_dtype.itemsize for field in manifest.fields if field.is_ragged}
    for number, shard in enumerate(manifest.shards):
        needed = shard.records * record_nbytes
        needed += sum(count * itemsizes[name] for name, count in shard.elements.items())
        held = sum(file.nbytes for file in shard.files) * (MAX_COMPRESSION if compresses else 1)
        if needed > held:
            raise ValueError(f"shard {number} claims {shard.records:,} records, which is more than fits into its files")
    if manifest.records * unpacked_nbytes > MAX_INT64:  # numpy has no arrays of that size
        raise ValueError(f"it claims records of {unpacked_nbytes:,} bytes each")
    room = shutil.disk_usage(folder).total  # 0 if it is not known
    claimed = max(manifest.records, manifest.nbytes)
    if (
        claimed > (room * MAX_DISK_COMPRESSION or MAX_INT64)
        and claimed > _nbytes_of_files(manifest, folder) * MAX_DISK_COMPRESSION
    ):
        raise ValueError(
            f"it claims {manifest.records:,} records and {manifest.nbytes:,} bytes, on a disk of {room:,} bytes"
        )


def _nbytes_of_files(manifest: Manifest, folder: Path) -> int:
    """Return the size that the files of all shards have together; 0 if one is missing.

    Asked where the disk seems too small: file systems of cloud storage give the size of their cache for it, and
    SquashFS that of the compressed image.
    """
    names = {file.name for shard in manifest.shards for file in shard.files}
    try:
        return sum((folder / name).stat().st_size for name in names)
    except OSError:
        return 0


def _min_nbytes(columns: Iterable[Column], compresses: bool) -> int:
    return sum(
        column.rows * (min(column.row_nbytes, COMPRESSED_NBYTES) if compresses else column.row_nbytes)
        for column in columns
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is not text")
    return value


def _check_depth(value: Any, allowed: int) -> None:
    # Python's JSON module can read values that are nested too deeply for it to write.
    if isinstance(value, (dict, list)):
        if not allowed:
            raise ValueError(f"its values are nested more than {MAX_DEPTH} deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, allowed - 1)
