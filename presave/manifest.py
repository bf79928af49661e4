"""The manifest: the one small file that says what a store holds, and without which there is no store."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from presave.checksum import checksum_bytes
from presave.errors import StoreError
from presave.schema import Field, Schema

MANIFEST_NAME = "manifest.json"
LAYOUT_VERSION = 1


@dataclass(frozen=True)
class StoredFile:
    """One file of a shard: its name in the store's folder, its size in bytes and its XXH3 checksum."""

    name: str
    nbytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Shard:
    """A run of consecutive records, and the files that hold it."""

    records: int
    files: tuple[StoredFile, ...]


@dataclass(frozen=True)
class Manifest:
    """What a store holds.

    `stage` is the pipeline's last stage before storing and `fingerprint` names that part of the pipeline;
    `provenance` is what else the writer of the records had to say (JSON values only).
    """

    format: str
    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]
    stage: str | None = None
    fingerprint: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

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
    with (folder / MANIFEST_NAME).open("wb") as file:
        file.write(_encode(content))
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


def load_manifest(folder: Path) -> Manifest:
    """The manifest of the store in `folder`.

    Raises `StoreError` where there is none, it was edited, it was written by a newer layout, or it contradicts itself.
    """
    path = folder / MANIFEST_NAME
    try:
        encoded = path.read_bytes()
    except FileNotFoundError:
        raise StoreError(_missing(folder)) from None
    except NotADirectoryError:
        raise StoreError(f"{folder} is a file; a store is a folder with a {MANIFEST_NAME}") from None
    try:
        content = json.loads(encoded.decode())
        if content.get("layout") != LAYOUT_VERSION:
            raise StoreError(
                f"{path}: store layout {content.get('layout')!r}; this version of presave reads {LAYOUT_VERSION}"
            )
        # The very bytes that were written, and not only the same content.
        unchanged = encoded == _encode(content)
        if content.pop("checksum", None) != _checksum(content) or not unchanged:
            raise StoreError(f"{path}: the manifest was changed after it was written; presave the data again")
        return _parse(content)
    except StoreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: not a presave manifest ({error}); presave the data again") from error


def _missing(folder: Path) -> str:
    if not folder.exists():
        unfinished = sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"))
        if unfinished:
            return (
                f"{folder} does not exist: a write was interrupted and left {unfinished[0]}; delete it and write again"
            )
        return f"{folder} does not exist; write it with presave.write or `etl presave`"
    if folder.name.endswith(".partial"):
        return f"{folder} is a store half written: it has no {MANIFEST_NAME}; delete it and write again"
    return f"{folder} is not a store: it has no {MANIFEST_NAME}"


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _checksum(content: dict[str, Any]) -> str:
    return checksum_bytes(_encode(content))


def _parse(content: dict[str, Any]) -> Manifest:
    fields = tuple(
        Field(str(each["name"]), str(each["dtype"]), tuple(int(size) for size in each["shape"]))
        for each in content["fields"]
    )
    for each in fields:
        if np.dtype(each.dtype).kind not in "biufc" or any(size < 0 for size in each.shape):
            raise ValueError(f"field {each.name!r} has dtype {each.dtype} and shape {each.shape}")
    shards = tuple(
        Shard(int(shard["records"]), tuple(StoredFile(**file) for file in shard["files"]))
        for shard in content["shards"]
    )
    for shard in shards:
        if shard.records < 1:
            raise ValueError(f"a shard of {shard.records} records")
        for file in shard.files:
            if PurePath(file.name).name != file.name or file.name in ("", ".", ".."):
                raise ValueError(f"file name {file.name!r} leaves the store's folder")
    return Manifest(
        format=str(content["format"]),
        fields=fields,
        shards=shards,
        stage=content["stage"],
        fingerprint=content["fingerprint"],
        provenance=dict(content["provenance"]),
    )
