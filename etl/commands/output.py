"""Output of the commands: tables, errors and progress for people, JSON for programs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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
from etl.printable_console import PrintableConsole
from etl.tables import output_size, print_table

# What takes less time needs no lines of progress.
SILENT_SECONDS = 10.0
# An error may quote a field of many megabytes.
MAX_ERROR_LENGTH = 4_000
# The value of an option for a file that is `-`. Tables are then shown on standard error.
STANDARD_OUTPUT = Path("/dev/stdout")
# The folder below /dev that holds ordinary files.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - recognised, never chosen
# Options for files that a command writes.
FILE_OPTIONS = ("json", "html", "trace", "toml", "profile", "cluster_profile")


class PlainConsole(PrintableConsole):
    """A console for strings from outside, such as names of files and fields.

    Strings are shown as they are: markup and emoji codes have no effect, numbers have no colours of their own, and
    characters that are unprintable, or that the encoding of the terminal lacks, are shown as ASCII.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **arguments)

    def on_broken_pipe(self) -> None:
        """Show nothing more: the program that reads it has ended. Rich would end this one."""
        _silence(self.file)


def output_console() -> PlainConsole:
    """Return the console of standard output, as wide as the terminal; for a pipe, wide enough for every table."""
    width, height = output_size()
    return PlainConsole(width=width, height=height)


def open_standard_streams() -> bool:
    """Open the standard streams that are closed, as empty ones; return whether standard output was open.

    Otherwise files and pipes would take their descriptors.
    """
    was_open = sys.stdout is not None
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: PTH123, SIM115 - stays open
    return was_open


@contextmanager
def shown() -> Iterator[PlainConsole]:
    """Yield the console of standard output; at the end of the block all is written.

    A program that reads it and ends earlier has read what it needs: that is not an error. Raises `OSError` that says
    why if standard output cannot be written.
    """
    try:
        try:
            yield output_console()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        raise OSError(f"standard output cannot be written: {error.strerror or error}") from error


def _silence(stream: IO[str]) -> None:
    """Let what is written to `stream` vanish, what it still holds included."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), stream.fileno())


def deliver(*results: Callable[[], None], show: Callable[[PlainConsole], None]) -> None:
    """Write the results of a command to files, and then show them. A file that fails does not keep the rest from it.

    Raises the first error, once all was tried. Further ones are shown.
    """

    def show_it() -> None:
        with shown() as console:
            show(console)

    first: Exception | None = None
    for result in (*results, show_it):
        try:
            result()
        except Exception as error:  # noqa: BLE001 - raised below
            if first is not None:
                show_error(f"{type(error).__name__}: {error}")
            first = first or error
    if first is not None:
        raise first


def show_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """Print a two-column table on standard output, before the end of a block of `shown`."""
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts:
        table.add_row(name, value)
    print_table(table, output_console())


def add_page_arguments(group: argparse._ActionsContainer) -> None:
    """Declare the options of a page, which `save_page` takes."""
    group.add_argument("--html", type=output_path, metavar="FILE", help="one page with charts, which needs no network")
    group.add_argument("--open", action="store_true", help="show that page in the browser")


def output_path(text: str) -> Path:
    """Return the path of a file that a command writes; `STANDARD_OUTPUT` for `-`."""
    return STANDARD_OUTPUT if text == "-" else Path(text)


@contextmanager
def checked_outputs(arguments: argparse.Namespace, is_open: bool, only_shows: bool) -> Iterator[None]:
    """Check, before any work is done, that the results can be written; show tables on standard error if a file is `-`.

    Parameters
    ----------
    is_open : bool
        True if standard output was open.
    only_shows : bool
        True if a command without an option for a file has no other result than what it shows.

    Raises
    ------
    ValueError
        If a file cannot be written, as far as that is known yet; if standard output is closed, and the result is to be
        there.
    """
    given = {name: getattr(arguments, name, None) for name in FILE_OPTIONS}
    files = {f"--{name.replace('_', '-')}": path for name, path in given.items() if path is not None}
    for option, path in files.items():
        if path != STANDARD_OUTPUT:
            check_file_path(path, option)
    here = [option for option, path in files.items() if path == STANDARD_OUTPUT]
    if len(here) > 1:
        raise ValueError(f"{' and '.join(here)} cannot both be standard output; give one of them the path of a file")
    if not is_open and (here or (only_shows and not files and not getattr(arguments, "open", False))):
        raise ValueError(
            "standard output is closed, and nothing else would hold the result; give a file, as --json FILE"
        )
    if not here:
        yield
        return
    _results.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


# Standard output, while tables are shown on standard error.
_results: list[IO[str]] = []


def check_file_path(path: Path, option: str) -> None:
    """Check, before any work is done, that a file can be written to `path`, the value of `option`.

    Raises `ValueError` if `path` is a folder, is in a folder that does not exist, or cannot be written.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{option} {path}: {'is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")
    # A file is replaced, which takes a new one in its folder.
    replaced = path if _is_written_directly(path) else path.resolve().parent
    if not os.access(replaced, os.W_OK):
        raise ValueError(f"{option} {path}: {replaced} is not writable")


def _is_written_directly(path: Path) -> bool:
    is_device = path.is_relative_to("/dev") and not path.is_relative_to(SHARED_MEMORY)
    return is_device or (path.exists() and not path.is_file())


def save_json(path: Path | None, content: dict[str, Any]) -> None:
    """Write `content` to `path` with `save_text`, unless `path` is None."""
    if path is not None:
        save_text(path, json.dumps(content, indent=1) + "\n")


def save_text(path: Path, text: str) -> None:
    """Replace the file at `path` atomically with `text`. Pipes and devices are written to directly.

    What is for `STANDARD_OUTPUT` is added to it. Raises `OSError` that says why if the file cannot be written.
    """
    data = text.encode()
    if path == STANDARD_OUTPUT:  # opened again, it would be emptied if it is a file
        with contextlib.redirect_stdout(_results[-1] if _results else sys.stdout), shown():
            sys.stdout.flush()
            if hasattr(sys.stdout, "buffer"):
                sys.stdout.buffer.write(data)
            else:  # a caller's own
                sys.stdout.write(text)
        return
    from presave.errors import explain_disk_error  # here, since `presave` loads numpy: see `etl run`
    from presave.files import usual_mode, write_atomically

    try:
        if _is_written_directly(path):
            path.write_bytes(data)
        else:
            target = path.resolve()  # a link stays a link
            write_atomically(target, data, mode=usual_mode(target))
    except OSError as error:
        raise explain_disk_error(error, path, f"{len(data):,} bytes were being written to {path}") from error


def save_page(path: Path | None, opens: bool, render: Callable[[], str]) -> None:
    """Write a page to `path`, and open it in the user's browser; `render` returns the page."""
    if path is None and not opens:
        return
    page = Path(tempfile.mkdtemp(prefix="etl-")) / "report.html" if path is None else path
    save_text(page, render())
    if opens and not webbrowser.open(page.resolve().as_uri()):
        show_error(f"no browser could be opened; the page is {page}")
    elif path is None:
        with shown() as console:
            console.print(f"The page is {page}", soft_wrap=True)


def show_error(text: str, command: str = "etl") -> None:
    """Print `text` as one line on standard error, shortened if it is very long; a terminal breaks it between words."""
    line = printable(" ".join(text.split()))
    line = f"{command}: {line if len(line) <= MAX_ERROR_LENGTH else line[:MAX_ERROR_LENGTH] + ' ...'}"
    if sys.stderr.isatty():
        line = textwrap.fill(line, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # there is no stream left to say so
        _silence(sys.stderr)


def show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Print a warning as one line on standard error; replaces `warnings.showwarning` while a command runs."""
    show_error(f"{'' if category is UserWarning else f'{category.__name__}: '}{message}")


class LiveProgress(Progress):
    """Columns that change while a block runs. If standard error is no terminal, each new description is a line, from
    `SILENT_SECONDS` on.

    Attributes
    ----------
    is_quiet : bool
        Show neither, in any command.
    """

    is_quiet = False

    def __init__(self, *columns: ProgressColumn) -> None:
        console = PlainConsole(stderr=True)
        self._shows_lines = not console.is_terminal and not self.is_quiet
        self._description = self._line = ""
        self._began = time.monotonic()
        super().__init__(*columns, console=console, disable=not console.is_terminal or self.is_quiet, transient=True)

    def add_task(self, description: str, *arguments: Any, **options: Any) -> TaskID:
        self._description = description
        return super().add_task(description, *arguments, **options)

    def update(self, task_id: TaskID, **options: Any) -> None:
        self._description = options.get("description") or self._description
        is_new = self._description != self._line and time.monotonic() - self._began >= SILENT_SECONDS
        if self._shows_lines and is_new:
            self._line = self._description
            with contextlib.suppress(OSError):
                print(self._line, file=sys.stderr, flush=True)
        super().update(task_id, **options)


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with rate and remaining time; yield a function of how many are done, of how many."""
    columns = (  # in a narrow terminal the title folds and the bar shrinks
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn(unit),
        _Rate(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    with LiveProgress(*columns) as progress:
        task = progress.add_task(printable(title), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Rate(ProgressColumn):
    """A column with the steps per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")
