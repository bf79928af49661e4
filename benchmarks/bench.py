"""Measure a commit with asv, publish the history, and show progress: `python -m benchmarks.bench`, or `make bench`.

asv's own output stays silent while it installs and measures. So this command runs asv, prints what asv prints, and at
least every ten seconds what is being done; the first times are printed as soon as a round is complete.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from benchmarks.cells import PROFILE_VARIABLE, STRATEGIES, Cell
from benchmarks.console import say, wide_console
from benchmarks.journal import JOURNAL_VARIABLE, CellMetrics, read_lines, samples_in

ROOT = Path(__file__).parents[1]
JOURNALS = ROOT / ".asv" / "unfinished"
EVERY_SECONDS, LOOK_SECONDS = 10.0, 0.5
INTERRUPTED = 130
# asv names its environment by all packages in it.
ENVIRONMENT = re.compile(r"virtualenv-py\S+")
# asv exits with this if a benchmark failed; the others were measured.
SOME_FAILED = 2
# What asv measures of each profile: other suites than these are for single parts.
BENCHMARKS = {"quick": ["--bench", "^end_to_end"], "full": []}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, publish and print the table; return asv's exit code, or 130 after an interruption."""
    options = parse(arguments)
    started = time.monotonic()
    os.environ[PROFILE_VARIABLE] = options.profile
    os.environ[JOURNAL_VARIABLE] = str(JOURNALS)
    console = wide_console()
    asv = [sys.executable, "-m", "asv"]
    again = ["--skip-existing-successful"] if options.profile == "full" else []
    measure = [*asv, "run", "--record-samples", "--show-stderr", *again, *BENCHMARKS[options.profile]]
    try:
        subprocess.run([*asv, "machine", "--yes"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        code = watch([*measure, options.commits], "asv starts", Progress(JOURNALS), console)
        if code not in (0, SOME_FAILED):
            return code
        published = watch([*asv, "publish"], "publishing", lambda: None, console)
    except KeyboardInterrupt:
        say("Interrupted: the next call goes on after the last complete round.", console)
        return INTERRUPTED
    shown = subprocess.run([sys.executable, "-m", "benchmarks.publish.table"], cwd=ROOT, check=False).returncode
    say(f"This took {time.monotonic() - started:.0f} s.", console)
    return code or published or shown


class Progress:
    """The text of what has been measured so far, from the newest journal in `folder`, or None if nothing is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ignored = set(folder.glob("*.jsonl"))
        self._seen = 0
        self._rounds = 0
        self.doing = ""

    def __call__(self) -> str | None:
        """Return a line for each round that was completed since the last call; `doing` is what is measured now."""
        # A journal is written anew when measuring begins, also that of an interrupted run.
        journals = sorted(self._folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        lines = read_lines(journals[-1]) if journals else []
        if not lines or len(lines) == self._seen:
            return None
        self._seen = len(lines)
        header, samples = lines[0], samples_in(lines)
        done = sum(len(each) for each in samples.values())
        self.doing = f"measured {done} of {header['cells'] * header['rounds']} samples of end_to_end"
        rounds = min((len(each) for each in samples.values()), default=0) if len(samples) == header["cells"] else 0
        if rounds <= self._rounds:
            return None
        self._rounds = rounds
        return f"round {rounds} of {header['rounds']}: an epoch takes {walls(samples)}"


def walls(samples: Mapping[Cell, Mapping[int, CellMetrics]]) -> str:
    """Return the median wall time so far of each strategy at the base point, in words."""
    medians = {
        cell.strategy: statistics.median(each.epoch.wall.total for each in taken.values())
        for cell, taken in samples.items()
        if cell == Cell(strategy=cell.strategy)
    }
    ordered = [name for name in (*STRATEGIES, *sorted(medians.keys() - STRATEGIES.keys())) if name in medians]
    return ", ".join(f"{medians[name] * 1e3:,.0f} ms with {name}" for name in ordered)


def watch(command: Sequence[str], doing: str, progress: Callable[[], str | None], console: Console) -> int:
    """Run a command, print its lines, and what it does meanwhile; return its exit code.

    Parameters
    ----------
    command : sequence of str
        The command.
    doing : str
        What it does until it prints a line.
    progress : callable
        Returns a line to print, or None. It may have an attribute `doing`.
    console : Console
        Shows the status in a terminal; in a pipe a line is printed at least every ten seconds.
    """
    shown = _Shown(doing, console)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        reader = threading.Thread(target=_read, args=(process.stdout, shown), daemon=True)
        reader.start()
        try:
            with console.status(doing) as status:
                while process.poll() is None:
                    if (line := progress()) is not None:
                        shown.say(line)
                    shown.update(getattr(progress, "doing", ""), status)
                    time.sleep(LOOK_SECONDS)
        except BaseException:
            process.send_signal(signal.SIGINT)  # a terminal has sent it one already
            raise
        finally:
            process.wait()
            reader.join()
    return process.returncode


class _Shown:
    """Output of a command: its lines, and while it prints none, what it does and for how long."""

    def __init__(self, step: str, console: Console) -> None:
        self._step = step
        self._console = console
        self._began = self._printed = time.monotonic()
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        with self._lock:
            say(line, self._console)
            self._printed = time.monotonic()

    def begin(self, line: str) -> None:
        """Print a line of the command, which names the step that it begins."""
        named = ENVIRONMENT.sub("asv's environment", line.lstrip("·[]0123456789.% "))
        self._step, self._began = named, time.monotonic()
        self.say(line)

    def update(self, doing: str, status: Status) -> None:
        seconds = time.monotonic() - self._began
        text = f"{self._step}: {seconds:.0f} s{f', {doing}' if doing else ''}"
        status.update(text)
        if not self._console.is_terminal and time.monotonic() - self._printed >= EVERY_SECONDS:
            self.say(text)


def _read(stream: Any, shown: _Shown) -> None:
    for line in stream:
        if line.strip():
            shown.begin(line.rstrip())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--profile",
        choices=tuple(BENCHMARKS),
        default="quick",
        help="quick, the default: the axes that the README names, in minutes; full: every suite, in hours",
    )
    parser.add_argument("commits", nargs="?", default="HEAD^!", help="as `asv run` takes them (default: HEAD^!)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
