"""Settings of a comparison with functions of a script or notebook, which are carried to the measuring processes."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etl.arguments import parse_names
from etl.comparison.request.settings import Settings
from etl.functions import name_of_function, pickle_function
from etl.strategies import default_names
from etl.temporary import temporary_folder

# A strategy: a name as on the command line, or a function or class that loads.
Given = str | Callable[..., Any]
# Characters of a function's name in the name of its file, which has at most 255 bytes.
MAX_NAME = 50


@contextmanager
def carried_settings(
    source: Any,
    strategies: Sequence[Given] | Mapping[str, Given] | None,
    *,
    make_step: Given | None,
    model: Given | None,
    pipeline: Any,
    python: Mapping[str, str] | None,
    **settings: Any,
) -> Iterator[Settings]:
    """Yield the settings of a comparison from Python; files that carry functions are kept until the block ends.

    The arguments are those of `etl.compare`, and other fields of `Settings`.
    """
    with temporary_folder("functions") as folder:
        carried = _Carried(folder)
        source_reference, source_name = carried.source(source)
        yield Settings(
            source=source_reference,
            source_name=source_name,
            strategies=default_names() if strategies is None else carried.strategies(strategies),
            step=None if make_step is None else carried.function(make_step),
            model=None if model is None else carried.function(model),
            pipeline=None if pipeline is None else carried.value(pipeline),
            pythons=dict(python or {}),
            search=tuple(os.path.abspath(each) for each in sys.path),  # noqa: PTH100 - as spelled in sys.path
            **settings,
        )


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
        if isinstance(given, (str, functools.partial)) or inspect.isroutine(given) or inspect.isclass(given):
            return self.function(given)
        return self._write(lambda: given, type(given).__name__)

    def source(self, given: Any) -> tuple[str, str | None]:
        """Return the name of a source, and what reports call it; None for the same."""
        if isinstance(given, (str, os.PathLike)):
            return os.fspath(given), None
        name = getattr(given, "__name__", None) or type(given).__name__
        return self.value(given), str(name)

    def strategies(self, given: Sequence[Given] | Mapping[str, Given]) -> tuple[str, ...]:
        """Return strategies as the command line has them; a text is split as there."""
        if isinstance(given, str):
            return parse_names(given)
        if isinstance(given, Mapping):
            return tuple(f"{label}={self.function(each)}" for label, each in given.items())
        return tuple(each if isinstance(each, str) else f"{_label(each)}={self.function(each)}" for each in given)


def _label(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "function" if name == "<lambda>" else str(name)
