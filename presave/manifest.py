"""The content of a store, as its manifest describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from presave.content import join_contents
from presave.files import checksum_bytes
from presave.schema import Field, Schema


@dataclass(frozen=True)
class StoredFile:
    """One file of a shard.

    Attributes
    ----------
    name : str
        Its name in the store's folder.
    nbytes : int
        Its size in bytes.
    xxh3_128 : str
        Its checksum, 32 hexadecimal digits.
    """

    name: str
    nbytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Shard:
    """A run of consecutive records.

    Attributes
    ----------
    records : int
        Number of records.
    files : tuple of StoredFile
        The files that hold them.
    elements : dict of str to int
        For each ragged field, the number of elements that all its values in this shard have together.
    content : str, optional
        Identifies the records in their order; None in stores of earlier versions.
    """

    records: int
    files: tuple[StoredFile, ...]
    elements: dict[str, int] = field(default_factory=dict)
    content: str | None = None


@dataclass(frozen=True)
class Skipped:
    """A record of the source that was left out of the store.

    Attributes
    ----------
    record : int
        Its index in the source.
    cause : str
        The error that it raised.
    """

    record: int
    cause: str


@dataclass(frozen=True)
class Manifest:
    """A description of a store: its fields, its shards and where its records come from.

    Attributes
    ----------
    format : str
        Name of the storage format, one of `presave.formats()`.
    fields : tuple of Field
        The fields that every record has.
    shards : tuple of Shard
        The shards, in the order of their records.
    stage : str, optional
        The last stage of the pipeline that ran before the records were stored.
    fingerprint : str, optional
        Identifies the pipeline up to and including `stage`.
    provenance : dict
        Whatever else the source said about its records, as JSON values.
    options : dict
        Options of the format, as JSON values.
    skipped : tuple of Skipped
        Records that were left out because of `on_error="skip"`.
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
        """Number of records in the store."""
        return sum(shard.records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Size of the files of all shards, in bytes."""
        return sum(file.nbytes for shard in self.shards for file in shard.files)

    @property
    def content(self) -> str:
        """Identifies the records in their order; of a store of an earlier version, its files."""
        content = join_contents((shard.records, shard.content) for shard in self.shards)
        return content or checksum_bytes(
            "".join(file.xxh3_128 for shard in self.shards for file in shard.files).encode()
        )

    @property
    def schema(self) -> Schema:
        """The fields by name."""
        return {each.name: each for each in self.fields}
