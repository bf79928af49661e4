"""Progress of a comparison or of tuning in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from etl.commands.output import LiveProgress
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
def showing_progress(debug: bool) -> Iterator[Callable[[ComparisonProgress], None]]:
    """Yield a function that shows progress; with `debug`, print all details of a measurement that fails."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[step]}", markup=False),
        TimeElapsedColumn(),
    )
    try:
        with LiveProgress(*columns) as bar:
            bar.add_task("starting", total=1.0, step="")
            yield partial(_show, bar)
    except MeasurementError as error:
        if debug:
            with contextlib.suppress(OSError):
                print(error.text, file=sys.stderr)
        raise


def _show(bar: Progress, progress: ComparisonProgress) -> None:
    """Show the phase of a comparison, and the elapsed share of its time."""
    (task,) = bar.task_ids
    step = "" if progress.total in (None, 1) else f"{progress.done + 1} of {progress.total}"
    if progress.phase in ("measure", "confirm"):
        total = "" if progress.total is None else f" of {progress.total}"
        step = f"round {progress.done + 1}{total}"
    bar.update(task, description=PHASES[progress.phase], step=step)
    if progress.share is not None:
        bar.update(task, completed=progress.share)
    elif progress.total:
        bar.update(task, completed=progress.done / progress.total)
