"""A record, and the error that names one."""

from __future__ import annotations

from typing import Any

from etl.arguments import printable
from presave import Record, RecordSequence

__all__ = ["Record", "RecordError", "RecordSequence", "record_error", "source_name"]


class RecordError(ValueError):
    """A record that could not be loaded.

    Parameters
    ----------
    source : str
        Name of the source.
    record : int
        Index of the record in the source.
    stage : str
        Stage that failed; "read" if the source itself failed.
    name : str
        Name of the record's file, or "" if it has none.
    cause : str
        Reason, in words.
    """

    def __init__(self, source: str, record: int, stage: str, name: str, cause: str) -> None:
        super().__init__(source, record, stage, name, cause)
        self.source = source
        self.record = record
        self.stage = stage
        self.name = name
        self.cause = cause

    def __str__(self) -> str:
        of_file = f" ({printable(self.name)})" if self.name else ""
        location = f"record {self.record} of {printable(self.source)}{of_file}"
        return f"{location}: failed at stage '{self.stage}': {self.cause}"


def record_error(source: Any, record: int, stage: str, cause: BaseException) -> RecordError:
    """Return the `RecordError` for `cause`.

    Parameters
    ----------
    source : sequence of records
        Names the record's file if it has a method `describe(index)`.
    record : int
        Index of the record in the source.
    stage : str
        Stage that failed.
    cause : exception
        Error that the stage or the source raised.
    """
    describe = getattr(source, "describe", None)
    name = describe(record) if describe is not None else ""
    text = str(cause) or type(cause).__name__
    return RecordError(source_name(source), record, stage, name, text)


def source_name(source: Any) -> str:
    """Return the name of `source` for messages: its `name` or `path`, or else its type."""
    name = getattr(source, "name", None) or getattr(source, "path", None)
    return str(name) if name is not None else type(source).__name__
