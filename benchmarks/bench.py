"""Measure a commit with asv, publish the history, and show progress: `python -m benchmarks.bench`, or `make bench`.

asv's own output stays silent while it installs and measures. So this command runs asv, prints what asv prints, and at
least every ten seconds what is being done; the first times are printed as soon as a round is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from benchmarks.cells import PROFILE_VARIABLE, STRATEGIES, STRATEGIES_VARIABLE, Cell
from benchmarks.compare_commits.commits import NoSuchCommit, find_commit
from benchmarks.console import say, wide_console
from benchmarks.journal import CELLS, JOURNAL_VARIABLE, CellMetrics, by_variant, read_lines, remove_ended, results_in

ROOT = Path(__file__).parents[1]
JOURNALS = ROOT / ".asv" / "unfinished"
EVERY_SECONDS, LOOK_SECONDS = 10.0, 0.5
INTERRUPTED = 130
# asv names its environment by all packages in it.
ENVIRONMENT = re.compile(r"virtualenv-py\S+")
# What asv writes before each step.
STEP = re.compile(r"(\[ *[\d.]+%\] )?·+ ")
# asv exits with this if a benchmark failed; the others were measured.
SOME_FAILED = 2
# Modules of the suites of each profile. Each is one run of asv, which keeps its results at the end of a run only.
SUITES = {
    "quick": ("end_to_end",),
    "full": ("end_to_end", "decode", "gather", "overlap", "serving", "write", "settings"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, publish and print the table; return asv's exit code, or 130 after an interruption."""
    options = parse(arguments)
    if reason := unsupported_reason():
        print(reason, file=sys.stderr)
        return 2
    started = time.monotonic()
    os.environ[PROFILE_VARIABLE] = options.profile
    os.environ[JOURNAL_VARIABLE] = str(JOURNALS)
    console = wide_console()
    asv = [sys.executable, "-m", "asv"]
    measure = [*asv, "run", "--record-samples", "--show-stderr"]
    # The code of a user's loader may have changed since it was measured.
    measured_anew = "end_to_end" if os.environ.get(STRATEGIES_VARIABLE) else ""
    codes = set()
    try:
        subprocess.run([*asv, "machine", "--yes"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for suite in SUITES[options.profile]:
            begun = time.time()
            again = ["--skip-existing-successful"] if options.profile == "full" and suite != measured_anew else []
            command = [*measure, *again, "--bench", rf"^{suite}\b", options.commits]
            code = show_progress_of(command, f"asv starts with {suite}", Progress(JOURNALS), console)
            if code not in (0, SOME_FAILED):
                return code
            codes.add(code)
            remove_ended(JOURNALS, begun)  # asv has kept the results
        published = show_progress_of([*asv, "publish"], "publishing", lambda: None, console)
    except KeyboardInterrupt:
        say(
            "Interrupted: the next call goes on after the last complete round; a suite without rounds, or with a "
            "loader of yours, begins again.",
            console,
        )
        return INTERRUPTED
    table = [sys.executable, "-m", "benchmarks.publish.history_table", find_newest(options.commits)]
    shown = subprocess.run(table, cwd=ROOT, check=False).returncode
    say(f"This took {time.monotonic() - started:.0f} s.", console)
    return max(codes) or published or shown


def unsupported_reason() -> str:
    """Return why asv cannot measure the commits of this folder and publish them; "" if it can."""
    if not (ROOT / ".git").exists():
        return f"{ROOT} is not a clone made by git, so it has no commits to measure: clone the repository"
    from asv.config import Config  # here, because asv's environments, which lack it, import this module

    for branch in filter(None, Config.load(str(ROOT / "asv.conf.json")).branches):
        try:
            find_commit(branch, ROOT)
        except NoSuchCommit as error:
            return (
                f"{error}. asv publishes this branch: make it, as in `git branch {branch} origin/{branch}`, or name "
                "yours in asv.conf.json"
            )
    return ""


def find_newest(commits: str) -> str:
    """Return the hash of the newest of the commits that were measured; HEAD if only asv knows them, such as NEW."""
    command = ["git", "rev-list", "--first-parent", "--max-count=1", *shlex.split(commits), "--"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return listed.stdout.strip() or "HEAD"


class Progress:
    """The text of what has been measured so far, from the newest journal in `folder`, or None if nothing is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._earlier = self._written()
        self._seen = 0
        self._rounds = 0
        self.doing = ""

    def __call__(self) -> str | None:
        """Return a line for each round that was completed since the last call; `doing` is what is measured now."""
        # A journal is written anew when measuring begins, also that of an interrupted run.
        journals = {path: at for path, at in self._written().items() if self._earlier.get(path) != at}
        lines = read_lines(max(journals, key=journals.__getitem__)) if journals else []
        if not lines or len(lines) == self._seen:
            return None
        self._seen = len(lines)
        header, *others = lines
        taken = Counter(json.dumps(line["key"][0]) for line in others if "result" in line)
        failed = {json.dumps(line["failed"][0]) for line in others if "failed" in line}
        counts = [count for variant, count in taken.items() if variant not in failed]
        rounds = min(counts, default=0) if len(counts) + len(failed) == header["variants"] else 0
        all_samples = header["variants"] * header["rounds"]
        self.doing = f"measured {taken.total()} of {all_samples} samples of {header['experiment']}"
        if rounds <= self._rounds:
            return None
        self._rounds = rounds
        epochs = f"of {header['experiment']}"
        if header["experiment"] == CELLS.experiment:
            epochs = f"an epoch takes {walls(by_variant(results_in(lines, CELLS)))}"
        return f"round {rounds} of {header['rounds']}: {epochs}"

    def _written(self) -> dict[Path, int]:
        """Return when each journal was last written to, by the clock of the file system, which may be a coarse one."""
        return {path: path.stat().st_mtime_ns for path in self._folder.glob("*.jsonl")}


def walls(samples: Mapping[Cell, Mapping[int, CellMetrics]]) -> str:
    """Return the median wall time so far of each strategy at the base point, in words."""
    medians = {
        cell.strategy: statistics.median(each.epoch.wall.total for each in taken.values())
        for cell, taken in samples.items()
        if cell == Cell(strategy=cell.strategy)
    }
    ordered = [name for name in (*STRATEGIES, *sorted(medians.keys() - STRATEGIES.keys())) if name in medians]
    return ", ".join(f"{medians[name] * 1e3:,.0f} ms with {name}" for name in ordered)


def show_progress_of(command: Sequence[str], doing: str, progress: Callable[[], str | None], console: Console) -> int:
    """Run a command, print its lines, and what it does meanwhile; return its exit code.

    `progress` returns a line to print, or None, and may have an attribute `doing`. A terminal shows the status; in a
    pipe a line is printed at least every ten seconds.
    """
    shown = _Shown(doing, console)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        reader = threading.Thread(target=_read, args=(process, shown), daemon=True)
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
        """Show a line that may be unfinished as the step that it begins, if it begins one: asv's steps have a dot."""
        step = STEP.sub("", _shortened(line))
        if STEP.match(line) and step not in ("", self._step):
            self._step, self._began = step, time.monotonic()

    def update(self, doing: str, status: Status) -> None:
        seconds = time.monotonic() - self._began
        text = f"{self._step}: {seconds:.0f} s{f', {doing}' if doing else ''}"
        status.update(text)
        if not self._console.is_terminal and time.monotonic() - self._printed >= EVERY_SECONDS:
            self.say(text)


def _read(process: subprocess.Popen[bytes], shown: _Shown) -> None:
    """Show what the command prints. asv ends a line only when it begins the next one, so unfinished ones count, too."""
    unfinished = b""
    for chunk in _chunks(process):
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                shown.begin(text)
                shown.say(_shortened(text))
        shown.begin(unfinished.decode(errors="replace"))
    if unfinished.strip():
        shown.say(_shortened(unfinished.decode(errors="replace").rstrip()))


def _chunks(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield what a command prints until it ends, although a process that it leaves behind may keep the pipe open."""
    assert process.stdout is not None  # noqa: S101 - for the type checker
    pipe = process.stdout.fileno()
    while True:
        has_ended = process.poll() is not None  # if so, all that it printed is in the pipe
        if select.select([pipe], [], [], 0 if has_ended else LOOK_SECONDS)[0]:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return
            yield chunk
        elif has_ended:
            return


def _shortened(line: str) -> str:
    return ENVIRONMENT.sub("asv's environment", line)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--profile",
        choices=tuple(SUITES),
        default=os.environ.get(PROFILE_VARIABLE, "quick"),
        help="quick: four strategies and the batch size, in minutes; full: every suite, in hours (default: that of "
        f"{PROFILE_VARIABLE}, else quick)",
    )
    parser.add_argument("commits", nargs="?", default="HEAD^!", help="as `asv run` takes them (default: HEAD^!)")
    options = parser.parse_args(arguments)
    if options.profile not in SUITES:  # argparse takes any default
        parser.error(f"{PROFILE_VARIABLE}={options.profile!r}: this command measures {' or '.join(SUITES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
