"""Operations that are timed in turns, so that their ratios are of the same minute of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measuring.rounds import Rounds

SEED = 0

Operation = Callable[[], object]
# For each operation its figure from every round, in seconds unless said otherwise.
Results = dict[str, list[float]]


def in_rounds(operations: Mapping[str, Operation], rounds: int, passes: int = 1) -> Results:
    """Time all operations `passes` times in each round, every time in another order.

    An operation's fastest is its sample: all of them do the same work each time, to which whatever else runs on the
    machine can only add.
    """
    timed = Rounds(operations, lambda name, _: _seconds(operations[name]), seed=SEED)
    timed.run(rounds * passes)
    return {
        name: [min(seconds[first + number] for number in range(passes)) for first in range(0, rounds * passes, passes)]
        for name, seconds in timed.samples.items()
    }


def ratios(results: Results, above: str, below: str) -> list[float]:
    """The figure of `above` over that of `below`, round by round."""
    return [one / other for one, other in zip(results[above], results[below], strict=True)]


def as_samples(samples: list[float]) -> dict[str, Any]:
    """What a benchmark returns for asv to keep all samples."""
    return {"samples": samples, "number": 1}


def require(cache: Results, *operations: str) -> None:
    """Raise `NotImplementedError`, which asv shows as n/a, unless all of them were measured."""
    missing = [name for name in operations if name not in cache]
    if missing:
        raise NotImplementedError(f"not at this commit or in this environment: {', '.join(missing)}")


def spread(values: list[float], digits: int = 2) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _seconds(operation: Operation) -> float:
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started
