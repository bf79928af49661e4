"""How direct runs say what they found, and what kept them from it."""

from __future__ import annotations

import sys

from rich.console import Console

# Of the widest table: into a file no column is cut.
FILE_WIDTH = 190


def wide_console() -> Console:
    """As wide as the terminal, and into a pipe or a file as wide as any of the tables."""
    return Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)


def say_failure(reason: object, console: Console) -> None:
    """In red and in one line, however long, so that it can be searched for."""
    console.print(str(reason), style="red", markup=False, highlight=False, soft_wrap=True)
