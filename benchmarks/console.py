"""Where the tables of direct runs are printed."""

from __future__ import annotations

import sys

from rich.console import Console

# Of the widest table: into a file no column is cut.
FILE_WIDTH = 190


def wide_console() -> Console:
    """As wide as the terminal, and into a pipe or a file as wide as any of the tables."""
    return Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
