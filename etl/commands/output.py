"""How commands show things: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
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
from rich.table import Table
from rich.text import Text


def show_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """Print a two-column table on standard output."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    Console().print(table)


def check_file_path(path: Path | None, option: str) -> None:
    """Raise `ValueError` before any work is done where no file could be written to `path`, the value of `option`."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"{option} {path}: {'is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")


def save_json(path: Path | None, content: dict[str, Any]) -> None:
    """Write `content` to `path`, or nothing where it is None."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        _Rate(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bar(progress, progress.add_task(title, total=None))


class _Rate(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")
