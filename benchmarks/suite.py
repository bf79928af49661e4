"""The base of asv's suites: attributes of their metrics, results with samples, the text of the pages, and rounds."""

from __future__ import annotations

import inspect
import statistics
import time
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from benchmarks.cells import chosen_profile
from benchmarks.measuring.rounds import Rounds

SEED = 0

Operation = Callable[[], object]
# One value a round for each operation, in seconds unless it says otherwise.
Timings = dict[str, list[float]]
Name = TypeVar("Name", bound=Hashable)
SuiteType = TypeVar("SuiteType", bound="type[Any]")
Function = TypeVar("Function", bound=Callable[..., Any])


class Suite:
    """The attributes that all suites have. A suite has `params` and `param_names`, and metrics: `track_` methods."""

    # Seconds in which a metric is looked up among those that `setup_cache` has measured.
    timeout = 60
    version = chosen_profile().version


class TimedSuite(Suite):
    """A suite whose `setup_cache` returns timings; n/a if one of the operations that its metrics need was not timed."""

    # Returns their names, called with the values of the parameters.
    operations: Callable[..., tuple[str, ...]]

    def setup(self, cache: Timings, *values: Any) -> None:
        missing = [name for name in self.operations(*values) if name not in cache]
        if missing:  # asv's n/a
            raise NotImplementedError(f"not at this commit or in this environment: {', '.join(missing)}")


def attributes(**values: object) -> Callable[[Function], Function]:
    """Return a decorator that sets attributes that asv reads: `unit` of a metric, `timeout` of `setup_cache`."""

    def decorate(function: Function) -> Function:
        function.__dict__.update(values)
        return function

    return decorate


def in_rounds(operations: Mapping[str, Operation], rounds: int, passes: int = 1) -> Timings:
    """Time operations in interleaved rounds, so that a change of the machine's speed affects all of them."""
    timed = Rounds(operations, lambda name, _: _seconds(operations[name]), seed=SEED)
    timed.run(rounds * passes)
    return {
        name: [min(seconds[first + number] for number in range(passes)) for first in range(0, rounds * passes, passes)]
        for name, seconds in timed.samples.items()
    }


def ratios(timings: Mapping[Name, list[float]], numerator: Name, denominator: Name) -> list[float]:
    """Divide one operation's timings by another's, round by round."""
    return [one / other for one, other in zip(timings[numerator], timings[denominator], strict=True)]


def spread(values: list[float], digits: int = 2) -> str:
    """Format the median, and the lowest and highest value."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def as_samples(samples: Iterable[float]) -> dict[str, Any]:
    """Return the result of a `track_` function with all of its samples.

    asv computes their median and interval, and compares them, as for its own timings. It does not document this form,
    so asv is pinned and a test reads such a result back.
    """
    return {"samples": list(samples), "number": 1}


def explained(suite: SuiteType) -> SuiteType:
    """Decorate a suite so that asv's pages show docstrings instead of source, which says little about what is measured.

    The pages show the docstring of the metric and of the suite, and the suite's `page_note` if it has one. asv inserts
    them as HTML, so they must hold no angle brackets. Give the suite a `version`: without one asv takes the docstrings
    for the code, and treats a suite with a changed word as another benchmark.
    """
    about = [_paragraph(suite), *([suite.page_note] if hasattr(suite, "page_note") else [])]
    for name, function in inspect.getmembers(suite, inspect.isfunction):
        if name.startswith("track_"):
            setattr(suite, name, _shown_as(function, "\n\n".join([_paragraph(function), *about])))
        elif name in ("setup", "setup_cache"):
            setattr(suite, name, _shown_as(function, ""))
    return suite


def _paragraph(documented: Any) -> str:
    """Return a docstring without line breaks: the page makes its own."""
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


def _seconds(operation: Operation) -> float:
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started
