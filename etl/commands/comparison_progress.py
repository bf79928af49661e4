"""Progress of a comparison or of tuning in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from etl.commands.output import PlainConsole
from etl.comparison.run.comparison_progress import ComparisonProgress
from etl.measuring.processes import MeasurementError

PHASES = {
    "start": "starting processes",
    "profile": "profiling the raw pipeline",
    "try": "trying the loaders",
    "write": "presaving",
    "split": "choosing how to split the CPUs",
    "check": "checking that all strategies load the same",
    "measure": "measuring",
    "trace": "tracing",
    "tune": "trying settings",
    "confirm": "measuring the best settings again",
}


@contextmanager
def measuring(debug: bool) -> Iterator[_Show]:
    """Yield a function that shows progress; with `debug`, print all details of a measurement that fails."""
    try:
        with show_progress() as show:
            yield show
    except MeasurementError as error:
        if debug:
            with contextlib.suppress(OSError):
                print(error.text, file=sys.stderr)
        raise


@contextmanager
def show_progress() -> Iterator[_Show]:
    """Yield a function that shows progress on standard error; it shows nothing if that is not a terminal."""
    console = PlainConsole(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[step]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        yield _Show(bar, bar.add_task("starting", total=1.0, step=""))


class _Show:
    """The progress of a comparison: the elapsed share of its time, and the phase."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def __call__(self, progress: ComparisonProgress) -> None:
        step = "" if progress.total in (None, 1) else f"{progress.done + 1} of {progress.total}"
        if progress.phase in ("measure", "confirm"):
            total = "" if progress.total is None else f" of {progress.total}"
            step = f"round {progress.done + 1}{total}"
        self._bar.update(self._task, description=PHASES[progress.phase], step=step)
        if progress.share is not None:
            self._bar.update(self._task, completed=progress.share)
        elif progress.total:
            self._bar.update(self._task, completed=progress.done / progress.total)
