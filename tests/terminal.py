"""Commands in a real pseudo-terminal, and what they show there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Of the environment: what would make rich believe something else of the terminal.
TERMINAL_VARIABLES = ("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "PYTHONIOENCODING")


@dataclass(frozen=True)
class Shown:
    """What a command left on its terminal, and what else came of it."""

    text: str
    errors: str
    code: int

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def run_in_terminal(columns: int, *arguments: str, **environment: str) -> Shown:
    """Run Python with `arguments` and its standard input and output on a terminal of `columns` columns."""
    control, terminal = pty.openpty()
    set_columns(terminal, columns)
    inherited = {name: value for name, value in os.environ.items() if name not in TERMINAL_VARIABLES}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **inherited, **environment},
    )
    os.close(terminal)
    written = bytearray()
    reader = threading.Thread(target=_read, args=(control, written))
    reader.start()
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        reader.join()
        os.close(control)
    return Shown(ESCAPES.sub("", written.decode()).replace("\r\n", "\n"), errors.decode(), process.returncode)


def set_columns(terminal: int, columns: int) -> None:
    """Make the terminal that is open as `terminal` as wide, as a user does who resizes a window."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def _read(control: int, into: bytearray) -> None:
    while True:
        try:
            block = os.read(control, 65_536)
        except OSError:  # the last process that had the terminal has ended
            return
        if not block:
            return
        into += block
