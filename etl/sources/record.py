"""A record, and the error that names one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from etl.arguments import printable
from presave import Record as Record
from presave import RecordSequence as RecordSequence
from presave.thread_safety import is_torch_subset

# Keys, in lower case, of features and of labels in mappings: the items of a data set, the batches of a loader.
FEATURES_KEYS = frozenset(("features", "image", "images", "img", "pixel_values", "input", "inputs", "data", "x"))
LABELS_KEYS = frozenset(("label", "labels", "target", "targets", "y"))
MAX_NAMES_SHOWN = 5


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


def pair_keys(keys: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return the keys of features and of labels among `keys`; None if they cannot be told.

    Each is the only one in `FEATURES_KEYS` or `LABELS_KEYS`; of two keys, one known key is enough.
    """
    keys = list(keys)
    features = [key for key in keys if str(key).lower() in FEATURES_KEYS]
    labels = [key for key in keys if str(key).lower() in LABELS_KEYS]
    if len(keys) == 2 and len(features) + len(labels) == 1:
        (features if labels else labels).extend(key for key in keys if key not in (*features, *labels))
    return (features[0], labels[0]) if len(features) == len(labels) == 1 else None


def check_source(source: Any, kind: str = "a sequence of records") -> None:
    """Raise `ValueError` if `source` is a path, a mapping of names, a stream, or else has no records by number.

    `kind` is what it should be, in words.
    """
    if isinstance(source, (str, bytes, os.PathLike)):
        shown = os.fspath(source)
        raise ValueError(
            f"{shown!r} is a path or a name, not a sequence of records; pass etl.open_source({shown!r}), or the class "
            f"of the source, such as etl.ImageFolder({shown!r})"
        )
    if isinstance(source, Mapping) and isinstance(next(iter(source), ""), str):
        names = ", ".join(repr(name) for name in islice(source, MAX_NAMES_SHOWN))
        raise ValueError(
            f"a {type(source).__name__} of {names or 'nothing'} is not {kind}: records are read by number, from 0 on; "
            "pass one of its values, or, if these are columns, an object whose [i] returns their values of record i"
        )
    stream = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if isinstance(source, stream) or not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise ValueError(
            f"a {type(source).__name__} is not {kind}: records are read by number, which needs __len__ and "
            "__getitem__; put the items of a stream into a list, or let etl.AsyncIterator load its batches ahead"
        )


def check_file(path: Path) -> None:
    """Raise `ValueError` if there is no file at `path`."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")


def record_error(source: Any, record: int, stage: str, cause: BaseException) -> RecordError:
    """Return the `RecordError` for `cause`; it names the record's file if `source` has a method `describe(index)`."""
    text = str(cause) or type(cause).__name__
    if isinstance(cause, KeyError) and cause.args:  # its text is the key alone
        text = f"{type(cause).__name__}: {text}"
    return RecordError(source_name(source), record, stage, describe_record(source, record), text)


def describe_record(source: Any, index: int) -> str:
    """Return what the method `describe(index)` of `source` says about a record, such as its file; "" if it has none."""
    try:
        dataset, number = chosen_item(source, index)
        describe = getattr(dataset, "describe", None)
        found = describe(number) if callable(describe) else ""
    except Exception:  # noqa: BLE001 - a user's source may have another method of that name
        return ""
    return str(found) if isinstance(found, (str, os.PathLike)) else ""


def chosen_item(dataset: Any, index: int) -> tuple[Any, int]:
    """Return the data set and the index there of what a `Subset` of torch has at `index`; of any other, the same."""
    while is_torch_subset(dataset):
        dataset, index = dataset.dataset, dataset.indices[index]
    return dataset, index


def check_index(source: RecordSequence, index: int) -> None:
    """Raise `IndexError` that names the source if it has no record `index`."""
    if not 0 <= index < len(source):
        raise IndexError(f"record {index} of {source_name(source)}, which holds {len(source)}")


def source_name(source: Any) -> str:
    """Return the name of `source` for messages: its `name` or `path`, or else its type."""
    for attribute in ("name", "path"):
        found = getattr(source, attribute, None)
        if isinstance(found, (str, os.PathLike)) and str(found):  # of a user's source, it may be anything
            return str(found)
    return type(source).__name__
