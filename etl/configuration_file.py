"""The file of a configuration: its tables and keys, with comments for its reader; reading and writing it."""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w

from etl.arguments import describe
from presave.files import read_regular_file

MAX_NBYTES = 1 << 20
TABLES = ("data", "loader", "settings", "store", "result")
# Keys of each table, in their order in a file, each with a comment. [result] has any keys, and so has [settings] if the
# strategy is a user's loader.
KEYS: dict[str, dict[str, str]] = {
    "data": {
        "source": "",
        "split": "",
        "pipeline": "a function that returns the stages",
        "size": "side of the images in pixels",
        "decoder": "",
        "label": "",
        "features": "",
        "classes": "",
        "header": "",
        "delimiter": "",
        "regression": "",
        "missing": "replaces empty values",
        "follow_links": "",
        "allow_empty": "",
    },
    "loader": {"strategy": "", "batch_size": "", "dtype": "", "seed": "", "shuffle": ""},
    "settings": {
        "decoder": "",
        "stage": "the last one before records are stored",
        "format": "of the store",
        "compression": "of the store",
        "workers": "",
        "prefetch_size": "batches that are loaded ahead",
        "loading_threads": "threads or processes that load",
        "compute_threads": "threads of the training step: etl.from_config sets them in torch",
    },
    "store": {"path": "relative to this file"},
}


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Read the tables of the file at `path`, whose names are all known.

    Raises `OSError` if the file cannot be read, and `ValueError` if it is not TOML, or has an unknown table or key.
    Keys of [settings] and [result] are not checked.
    """
    try:
        tables = tomllib.loads(read_regular_file(path, MAX_NBYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such configuration", str(path)) from None
    except ValueError as error:  # not TOML, not UTF-8, or not a regular file
        raise ValueError(f"{path}: it cannot be read as TOML: {error}") from error
    for table, values in tables.items():
        if table not in TABLES:
            raise ValueError(f"{path}: {_unknown_at_top(table, isinstance(values, dict))}")
        if not isinstance(values, dict):
            raise ValueError(f"{path}: {table} must be a table, not {shown(values)}")
        for key in values:
            if table not in ("settings", "result") and key not in KEYS[table]:
                raise ValueError(f"{path}: [{table}] {key}: {unknown_key(key, table)}")
    return tables


def unknown_key(key: str, table: str) -> str:
    """Return an error for a key that `table` does not have, but that may be misspelt, or belong to another table."""
    owner = _owner(key)
    if owner is not None:
        return f"there is no such key in [{table}]; it belongs in [{owner}]"
    return f"there is no such key; there are {', '.join(KEYS[table])}{nearest(key, KEYS[table])}"


def _unknown_at_top(name: str, is_table: bool) -> str:
    owner = _owner(name)
    if owner is not None:
        return f"{name} belongs in [{owner}]"
    kind = "table" if is_table else "key"
    tables = ", ".join(f"[{each}]" for each in TABLES)
    return f"there is no {kind} {name}; there are the tables {tables}{nearest(name, TABLES)}"


def _owner(key: str) -> str | None:
    return next((table for table, keys in KEYS.items() if key in keys), None)


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return a suggestion for an error: the name of `known` that is most like `name`; empty if none is."""
    found = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def shown(value: Any) -> str:
    """Return `value` for an error."""
    return describe(value) if isinstance(value, (Mapping, list, tuple)) else repr(value)


def path_from_file(given: Any, folder: Path, is_name: Callable[[str], bool] = lambda _: False) -> Any:
    """Return the path that a file in `folder` gives, relative to the working folder; wrong values as they are.

    `is_name` is True for text that is a name unless something on disk is called so. Names are returned as they are.
    """
    if not isinstance(given, str) or not given:
        return given
    path = folder / given
    return given if is_name(given) and not os.path.lexists(path) else str(path)


def path_for_file(given: str, folder: Path, is_name: Callable[[str], bool] = lambda _: False) -> str:
    """Return the path to write into a file in `folder`: relative to it, unless `given` is absolute or a name.

    See `path_from_file`, which reads it.
    """
    path = Path(given)
    if path.is_absolute() or is_name(given):
        return given
    # The path itself may be a link, which stays one.
    whole = path.resolve() if path.name in ("", "..") else path.absolute().parent.resolve() / path.name
    return os.path.relpath(whole, folder)


def table_lines(table: str, values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table with comments, in the order of its keys, without None; nothing if it is empty."""
    values = {name: value for name, value in values.items() if value is not None}
    if not values:
        return []
    comments = KEYS[table]
    lines = ["", f"[{table}]"]
    for key in sorted(values, key=lambda each: list(comments).index(each) if each in comments else len(comments)):
        line = tomli_w.dumps({key: values[key]}).rstrip("\n")
        comment = comments.get(key)
        lines.append(f"{line}  # {comment}" if comment and "\n" not in line else line)
    return lines


def facts_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of [result]; raises `TypeError` for a value that TOML does not have."""
    return ["", *tomli_w.dumps({"result": facts}).splitlines()] if facts else []


def without_none(value: Any) -> Any:
    """Return `value` without what is None in a mapping, or in mappings in it."""
    if isinstance(value, Mapping):
        return {name: without_none(each) for name, each in value.items() if each is not None}
    return value
