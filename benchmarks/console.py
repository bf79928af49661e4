"""How direct runs say what they found, and what kept them from it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table


def wide_console() -> Console:
    """Return the console of standard output, as wide as the terminal; a pipe or a file gets whole tables."""
    width, height = tables.output_size()
    return Console(width=width, height=height)


def print_table(table: Table, console: Console, *, keys: int = 1, first: Sequence[str] = ()) -> None:
    """Print `table` as `etl compare` prints its own: columns that do not fit stand in a further table beneath.

    The first `keys` columns name a row and are in every table; those headed `first` are in the first.
    """
    tables.print_table(table, console, keys=keys, first=first)


def say(text: str, console: Console, style: str = "") -> None:
    """Print `text` wrapped at words; in a pipe or a file in one line, however long, so that it can be searched for."""
    text = tables.encodable(text, console.encoding)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def say_failure(reason: object, console: Console) -> None:
    """Print in red why something ended or was left out."""
    say(str(reason), console, "red")


def _load_tables() -> ModuleType:
    """Load the working tree's `etl/tables.py`: asv imports this module beside commits of `etl` that have none."""
    spec = importlib.util.spec_from_file_location("benchmarks.tables", Path(__file__).parents[1] / "etl/tables.py")
    assert spec is not None  # noqa: S101 - for the type checker, as is the next
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for the module of a class
    spec.loader.exec_module(module)
    return module


tables = _load_tables()
