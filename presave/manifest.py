"""The manifest: the one small file that says what a store holds, and without which there is no store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from presave.checksum import checksum_bytes
from presave.claims import LARGEST, check_claims
from presave.errors import StoreError
from presave.plain_file import read_plain
from presave.schema import LONGEST_SAFE_NAME, Field, Schema

MANIFEST_NAME = "manifest.json"
LAYOUT_VERSION = 2
# That of a hundred thousand shards with several files each has half of it.
LARGEST_MANIFEST_NBYTES = 64 << 20
DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
MOST_AXES = 32
DEEPEST_VALUES = 32


@dataclass(frozen=True)
class StoredFile:
    """One file of a shard: its name in the store's folder, its size in bytes and its XXH3 checksum."""

    name: str
    nbytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Shard:
    """A run of consecutive records, the files that hold it, and how many elements each ragged field has in it."""

    records: int
    files: tuple[StoredFile, ...]
    elements: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """A record of the source that is not in the store, and why."""

    record: int
    cause: str


@dataclass(frozen=True)
class Manifest:
    """What a store holds.

    `stage` is the pipeline's last stage before storing and `fingerprint` names that part of the pipeline;
    `provenance` is what else the writer of the records had to say and `options` are the format's (JSON values only).
    `skipped` are the records that were left out with `on_error="skip"`.
    """

    format: str
    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]
    stage: str | None = None
    fingerprint: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()

    @property
    def records(self) -> int:
        return sum(shard.records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all files of all shards."""
        return sum(file.nbytes for shard in self.shards for file in shard.files)

    @property
    def schema(self) -> Schema:
        return {each.name: each for each in self.fields}


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into `folder` and flush it to the disk."""
    content = {"layout": LAYOUT_VERSION, **asdict(manifest)}
    content["checksum"] = _checksum(content)
    encoded = _encode(content)
    if len(encoded) > LARGEST_MANIFEST_NBYTES:
        raise StoreError(f"{folder / MANIFEST_NAME} would have {len(encoded):,} bytes; write larger shards")
    with (folder / MANIFEST_NAME).open("wb") as file:
        file.write(encoded)
        file.flush()
        os.fsync(file.fileno())


def json_values(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """`provenance` as it will be read back: tuples become lists, and keys strings.

    Raises `StoreError` where JSON cannot hold a value.
    """
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(provenance)))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the provenance of the records cannot be kept: {error}; use JSON values only") from error
    return values


def partial_folder(target: Path) -> Path:
    """Where a store is written before it is whole, beside the place where it will be."""
    return target.with_name(f".{target.name}.partial")


def load_manifest(folder: Path) -> Manifest:
    """The manifest of the store in `folder`.

    Raises `StoreError` where there is none, it was edited, it was written by a newer layout, it contradicts itself, or
    what it says cannot be true.
    """
    path = folder / MANIFEST_NAME
    try:
        encoded = read_plain(path, LARGEST_MANIFEST_NBYTES)
    except FileNotFoundError:
        raise StoreError(_missing(folder)) from None
    except NotADirectoryError:
        raise StoreError(f"{folder} is a file; a store is a folder with a {MANIFEST_NAME}") from None
    except (ValueError, IsADirectoryError) as error:
        raise StoreError(f"{path}: not a presave manifest ({error}); presave the data again") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        content = json.loads(encoded.decode())
        if content.get("layout") != LAYOUT_VERSION:
            raise StoreError(
                f"{path}: store layout {content.get('layout')!r}; this version of presave reads {LAYOUT_VERSION}"
            )
        if not _is_unchanged(encoded, content.pop("checksum", None)):
            raise StoreError(f"{path}: the manifest was changed after it was written; presave the data again")
        manifest = _parse(content)
        check_claims(manifest, folder)
    except StoreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: not a presave manifest ({error}); presave the data again") from error
    return manifest


def _missing(folder: Path) -> str:
    if not folder.exists():
        unfinished = partial_folder(folder)
        if unfinished.exists():
            return (
                f"{folder} does not exist: a write of it was interrupted and left {unfinished}; write again, which "
                "goes on from there"
            )
        return f"{folder} does not exist; write it with presave.write or `etl presave`"
    if folder.name.endswith(".partial"):
        return f"{folder} is a store half written: it has no {MANIFEST_NAME}; write again, which goes on from there"
    return f"{folder} is not a store: it has no {MANIFEST_NAME}"


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _checksum(content: dict[str, Any]) -> str:
    return checksum_bytes(_encode(content))


def _is_unchanged(encoded: bytes, checksum: Any) -> bool:
    """Whether these are the very bytes that were written, and not only the same content. Encoding the content again to
    compare it would take longer than all else in opening a store of thousands of shards.
    """
    end = f',\n "checksum": "{checksum}"\n}}'.encode()
    return encoded.endswith(end) and checksum_bytes(encoded[: -len(end)] + b"\n}") == checksum


def _parse(content: dict[str, Any]) -> Manifest:
    fields = tuple(parse_field(each) for each in content["fields"])
    shards = tuple(parse_shard(each) for each in content["shards"])
    ragged = {each.name for each in fields if each.is_ragged}
    if any(shard.elements.keys() != ragged for shard in shards):
        raise ValueError(f"the elements of {', '.join(sorted(ragged)) or 'no fields'} are not those of every shard")
    if len({each.name for each in fields}) < len(fields):
        raise ValueError("two fields have one name")
    _check_depth(content["provenance"], DEEPEST_VALUES)
    _check_depth(content["options"], DEEPEST_VALUES)
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
    """The field of these JSON values; raises `ValueError` or others where they are not of one."""
    shape = tuple(None if size is None else whole_number(size) for size in content["shape"])
    found = Field(_text(content["name"]), _text(content["dtype"]), shape)
    sizes = [size for size in shape if size is not None]
    # The dtype is compared before numpy parses it, which understands much more than a store may hold.
    is_known = DTYPE.fullmatch(found.dtype) and found.numpy_dtype.kind in "biufc" and len(shape) <= MOST_AXES
    if not is_known or 0 in sizes or (sizes and found.is_ragged):
        raise ValueError(f"field {found.name!r} has dtype {found.dtype:.20} and shape {shape[: MOST_AXES + 1]}")
    if not 0 < len(found.safe_name) <= LONGEST_SAFE_NAME:
        raise ValueError(f"field name {found.name[:LONGEST_SAFE_NAME]!r}")
    return found


def parse_shard(content: dict[str, Any]) -> Shard:
    """The shard of these JSON values; raises `ValueError` or others where they are not of one."""
    files = tuple(
        StoredFile(_text(file["name"]), whole_number(file["nbytes"]), _text(file["xxh3_128"]))
        for file in content["files"]
    )
    elements = {name: whole_number(count) for name, count in content["elements"].items()}
    shard = Shard(whole_number(content["records"]), files, elements)
    if shard.records < 1:
        raise ValueError(f"a shard of {shard.records} records and {elements} elements")
    for file in files:
        if PurePath(file.name).name != file.name or file.name in ("", ".", ".."):
            raise ValueError(f"file name {file.name!r} leaves the store's folder")
        if not file.name.isprintable():  # no name can hold a null, or half a character
            raise ValueError(f"file name {file.name!r} is no text")
    return shard


def whole_number(value: Any) -> int:
    """`value`, if it is a whole number from 0 that 64 bits hold; raises `ValueError` for all else that JSON knows."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{str(value)[:40]} is no whole number from 0 to {LARGEST:,}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is no text")
    return value


def _check_depth(value: Any, deepest: int) -> None:
    # What JSON has read it may be unable to write again, so deep is it.
    if isinstance(value, (dict, list)):
        if not deepest:
            raise ValueError(f"its values lie within more than {DEEPEST_VALUES} others")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, deepest - 1)
