"""How commands show things: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from etl.arguments import printable
from etl.commands.console import PlainConsole, output_console
from etl.tables import print_table
from presave.errors import explain_disk_error
from presave.files import write_atomically

# What is wrong may be a field of many megabytes.
LONGEST_ERROR = 4_000


def show_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """Print a two-column table on standard output."""
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts:
        table.add_row(name, value)
    print_table(table, output_console())


def check_file_path(path: Path | None, option: str) -> None:
    """Raise `ValueError` before any work is done where no file could be written to `path`, the value of `option`."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"{option} {path}: {'is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")


def save_json(path: Path | None, content: dict[str, Any]) -> None:
    """Write `content` to `path`, or nothing where it is None, as `save_text` does."""
    if path is not None:
        save_text(path, json.dumps(content, indent=1) + "\n")


def save_text(path: Path, text: str) -> None:
    """Write `text` to `path`, where until then stays what was there before. Raises `OSError` that says what is wrong.

    Pipes, devices and what /dev leads to are written to as they are.
    """
    data = text.encode()
    try:
        if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
            path.write_bytes(data)
        else:
            place = path.resolve()  # a link stays one
            write_atomically(place, data, mode=_mode(place))
    except OSError as error:
        raise explain_disk_error(error, path, f"{len(data):,} bytes were on their way to {path}") from error


def _mode(path: Path) -> int:
    """The mode that `path` has, or that a new file would get."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def show_error(text: str) -> None:
    """Print `text` as one line on standard error, cut off where it goes on and on."""
    line = printable(" ".join(text.split()))
    print(f"etl: {line if len(line) <= LONGEST_ERROR else line[:LONGEST_ERROR] + ' ...'}", file=sys.stderr)


def show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Print a warning as one line on standard error: what `warnings.showwarning` is while a command runs."""
    show_error(f"{'' if category is UserWarning else f'{category.__name__}: '}{message}")


class Bar:
    """A progress bar with rate and time left, on standard error; nothing where that is no terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Bar]:
    """A bar that stands while the block runs."""
    columns = (  # where there is little room the title folds and the bar shrinks
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn(unit),
        _Rate(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    console = PlainConsole(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bar(progress, progress.add_task(printable(title), total=None))


class _Rate(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")
