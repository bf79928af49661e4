"""What asv's pages say of a figure: they show the source of a benchmark, which tells little of what was measured."""

from __future__ import annotations

import inspect
import types
from typing import Any, TypeVar

Suite = TypeVar("Suite", bound="type[Any]")


def explained(suite: Suite) -> Suite:
    """A class decorator: asv's pages show the docstrings of the figure and of the suite, and the suite's `page_note` if
    it has one, instead of their source.

    asv puts them on the page as HTML, so they hold no angle brackets. Give the suite a `version`: without one asv takes
    what it shows for the code, and a word changed for another benchmark.
    """
    about = [_paragraph(suite), *([suite.page_note] if hasattr(suite, "page_note") else [])]
    for name, function in inspect.getmembers(suite, inspect.isfunction):
        if name.startswith("track_"):
            setattr(suite, name, _shown_as(function, "\n\n".join([_paragraph(function), *about])))
        elif name in ("setup", "setup_cache"):
            setattr(suite, name, _shown_as(function, ""))
    return suite


def _paragraph(documented: Any) -> str:
    """A docstring without line breaks: the page makes its own."""
    text = inspect.getdoc(documented)
    if text is None:
        raise ValueError(f"{documented.__qualname__} has no docstring, which asv's pages are to show")
    return " ".join(text.split())


def _shown_as(function: types.FunctionType, text: str) -> types.FunctionType:
    # A copy: the function of a base class belongs to other suites, too.
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__dict__.update(function.__dict__, pretty_source=text)
    copy.__doc__ = function.__doc__
    copy.__qualname__ = function.__name__  # asv writes the name of a method's class above
    return copy
