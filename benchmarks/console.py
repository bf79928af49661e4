"""Console of the commands in this folder: tables, messages, progress, and lists of names as arguments."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rich import progress
from rich.console import Console

# Called with the share of the work that is done, from 0 to 1.
Progress = Callable[[float], None]


def wide_console() -> Console:
    """Return the console of standard output, as wide as the terminal; a pipe or a file gets whole tables."""
    width, height = tables.output_size()
    return Console(width=width, height=height)


def say(text: str, console: Console, style: str = "") -> None:
    """Print `text` wrapped at words; in a pipe or a file on one line, however long, so that it can be searched for."""
    text = tables.encodable(text, console.encoding)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def say_failure(reason: object, console: Console) -> None:
    """Print in red why something ended or was left out."""
    say(str(reason), console, "red")


@contextmanager
def progress_bar(title: str, console: Console) -> Iterator[Progress]:
    """Show a bar on `console` for as long as the context lasts, if it is a terminal."""
    with progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def comma_separated(known: Collection[str], kind: str) -> Callable[[str], tuple[str, ...]]:
    """Return a `type` for argparse that reads names separated by commas."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {kind} is called {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return read


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
print_table = tables.print_table
