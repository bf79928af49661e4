"""Measuring cells in rounds: in every round each cell once, in a shuffled order, each time in a fresh process."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.cell import Cell
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.profile import Profile
from benchmarks.servers import start_server
from benchmarks.workload import Data

if TYPE_CHECKING:
    from typing_extensions import Self

# Scores of equal work are equal to the bit on one thread of a CPU; a GPU adds in another order each time.
SCORE_TOLERANCE = 1e-2

Results = dict[Cell, "list[dict[str, Any]] | str"]


class Unfair(Exception):  # noqa: N818 - the word the reader looks for
    """Strategies that were to do the same work did not; their times say nothing about each other."""


def measure_cells(cells: Iterable[Cell], data: Data, profile: Profile) -> Results:
    """For each cell one result a round, or what went wrong with it. Raises `Unfair` where equal work was not equal."""
    results: Results = {cell: [] for cell in cells}
    with CellServer(data, profile.seconds_per_figure) as server:
        for number in range(profile.rounds):
            order = list(results)
            random.Random(number).shuffle(order)
            for cell in order:
                samples = results[cell]
                if isinstance(samples, str):
                    continue
                result = server.measure(cell)
                if "error" in result:
                    results[cell] = f"{cell}: {result['error']}"
                else:
                    samples.append(result)
    check_same_work(results)
    return results


def check_same_work(results: Results) -> None:
    """Raise `Unfair` unless cells of equal work loaded the same bytes in the same order and trained to one score."""
    first: dict[tuple[Any, ...], tuple[Cell, dict[str, Any]]] = {}
    for cell, samples in results.items():
        for sample in samples if not isinstance(samples, str) else []:
            other, expected = first.setdefault(cell.work, (cell, sample))
            for part in ("digest", "samples"):
                if sample[part] != expected[part]:
                    raise Unfair(f"{part} of {cell} is {sample[part]}, that of {other} {expected[part]}")
            if not math.isclose(sample["score"], expected["score"], rel_tol=SCORE_TOLERANCE):
                raise Unfair(f"{cell} trained to {sample['score']}, {other} to {expected['score']}")


class CellServer:
    """A context manager around the server of `measure.prepare`, started anew after a cell that does not come back."""

    def __init__(self, data: Data, seconds_per_figure: float) -> None:
        self._request = {"data": asdict(data), "seconds_per_figure": seconds_per_figure}
        self._server: Server | None = None

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Return the figures of `cell` from a fresh process, or `{"error": ...}`."""
        if self._server is None:
            self._server = start_server("a cell", "measure:prepare", self._request)
        try:
            result = self._server.sample({"cell": cell.as_dict()})
        except MeasurementError as error:
            self._stop()
            return {"error": error.text}
        if not self._server.can_fork:
            self._stop()
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
