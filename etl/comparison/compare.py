"""`etl.compare`: a comparison from Python, with functions of a script or notebook."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etl.arguments import parse_seconds
from etl.comparison.phases import run_comparison
from etl.comparison.progress import ComparisonProgress
from etl.comparison.report import Report
from etl.comparison.settings import Settings
from etl.functions import name_of_function, pickle_function
from etl.strategies import default_names

# A strategy: a name as on the command line, or a function or class that loads.
Given = str | Callable[..., Any]
# Characters of a function's name in the name of its file, which has at most 255 bytes.
MAX_NAME = 50


def compare(
    source: Any,
    strategies: Sequence[Given] | Mapping[str, Given] | None = None,
    *,
    make_step: Callable[..., Any] | str | None = None,
    model: Callable[..., Any] | str | None = None,
    pipeline: Any = None,
    budget: str | float = "60s",
    python: Mapping[str, str] | None = None,
    progress: Callable[[ComparisonProgress], None] | None = None,
    **settings: Any,
) -> Report:
    """Compare ways to load `source`: end-to-end time of training or inference, as ETL plus compute.

    Every measurement is taken in a fresh process. Functions of a script or notebook are carried there with cloudpickle,
    so that the script needs no main guard, and nothing of this process is forked.

    Parameters
    ----------
    source : str, Path, source or data set
        A path as `open_source` takes it, "package.module:function", a sequence of records, a map-style data set, or a
        function that returns one of these.
    strategies : sequence or dict, optional
        Strategies to compare, by default those of `etl compare`. The first is the reference. Each is a name ("raw",
        "presaved", "package.module:function") or a function or class that is called with what its parameters ask for
        of a `Task` and returns an iterable of batches, one epoch an iteration. A dict gives them names for the report.
    make_step : callable or str, optional
        Called in each process with what its parameters ask for of a `Task`; returns `step(batch)`, which trains on a
        batch and may return the loss. It replaces `model`.
    model : callable or str, optional
        Name of a built-in model, or a function that returns one: called with the shape of a record and the number of
        outputs, or without arguments.
    pipeline : Pipeline, callable or str, optional
        Stages for the records of `source`, or a function that returns them; by default those that suit the source.
    budget : str or float
        Approximate time of the whole comparison, such as "60s" or "5min", or seconds.
    python : dict of str to str, optional
        Interpreter of another environment for a strategy, by its name in the report.
    progress : callable, optional
        Called with the progress after every step.
    **settings
        Any other field of `etl.comparison.settings.Settings`, such as `batch_size`, `dtype`, `compute`, `records` or
        `what_if=("cpus=8,compute=5ms",)`.

    Returns
    -------
    Report
        Printed, it is the tables of `etl compare`; in a notebook, its page. `to_json` and `save` keep it.

    Raises
    ------
    ValueError
        If the input is wrong: the source, a record, the model, a function that cannot be carried, or a setting.
    MeasurementError
        If no strategy can be measured.
    ContradictionError
        If the metrics of the report contradict each other.
    """
    with tempfile.TemporaryDirectory(prefix="etl-functions-") as folder:
        carried = _Carried(Path(folder))
        source_reference, source_name = carried.source(source)
        chosen = Settings(
            source=source_reference,
            source_name=source_name,
            strategies=default_names() if strategies is None else carried.strategies(strategies),
            step=None if make_step is None else carried.function(make_step),
            model=None if model is None else carried.function(model),
            pipeline=None if pipeline is None else carried.value(pipeline),
            budget_seconds=parse_seconds(budget, "budget") if isinstance(budget, str) else float(budget),
            pythons=dict(python or {}),
            search=tuple(os.path.abspath(each) for each in sys.path),  # noqa: PTH100 - as spelled in sys.path
            **settings,
        )
        return run_comparison(chosen, progress)


class _Carried:
    """Functions and objects of this process that others can load, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def function(self, given: Given) -> str:
        """Return a name for `given` in other processes."""
        if isinstance(given, str):
            return given
        return self._write(given, name_of_function(given))

    def _write(self, function: Callable[..., Any], name: str) -> str:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        return pickle_function(function, folder / f"{name.replace('/', '_')[:MAX_NAME]}.pickle")

    def value(self, given: Any) -> str:
        """Return a name for a function that returns `given`, or for `given` itself if it is a function or a name."""
        if isinstance(given, str) or inspect.isroutine(given) or inspect.isclass(given):
            return self.function(given)
        return self._write(lambda: given, type(given).__name__)

    def source(self, given: Any) -> tuple[str, str | None]:
        """Return the name of a source, and what reports call it; None for the same."""
        if isinstance(given, (str, os.PathLike)):
            return os.fspath(given), None
        name = getattr(given, "__name__", None) or type(given).__name__
        return self.value(given), str(name)

    def strategies(self, given: Sequence[Given] | Mapping[str, Given]) -> tuple[str, ...]:
        """Return strategies as the command line has them."""
        if isinstance(given, Mapping):
            return tuple(f"{label}={self.function(each)}" for label, each in given.items())
        return tuple(each if isinstance(each, str) else f"{_label(each)}={self.function(each)}" for each in given)


def _label(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "function" if name == "<lambda>" else str(name)
