"""Measuring cells in rounds: in every round each cell once, in a shuffled order, each time in a fresh process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

import joblib

from benchmarks.cell import Cell
from benchmarks.measure import Conditions, Figures
from benchmarks.measuring.layout import draw_environment, draw_hash_seed
from benchmarks.measuring.processes import FreshServers, MeasurementError, Server
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.turns import DifferentWork
from benchmarks.measuring.values import to_json
from benchmarks.profile import Profile
from benchmarks.servers import start_server
from benchmarks.workload import Data

CPUS_VARIABLE = "FAIR_ETL_CPUS"
# Scores of equal work are equal to the bit on one thread of a CPU; several, and a GPU, add in another order.
SCORE_TOLERANCE = 1e-2

Results = dict[Cell, "list[Figures] | str"]


def measure_cells(cells: Iterable[Cell], data: Data, profile: Profile) -> Results:
    """Return for each cell one result a round, or what went wrong with it.

    Every round has a server of its own, with another memory layout: its samples are one independent repetition.

    Raises
    ------
    DifferentWork
        If cells of equal work did not do the same.
    """
    server = CellServer(Conditions(data, profile.seconds_per_figure, cpus_of_cells()))
    results: Results = {}

    def note(cell: Cell, error: MeasurementError) -> None:
        results[cell] = error.text

    rounds = Rounds(cells, lambda cell, _: server.measure(cell), begin=lambda _: server, on_failure=note)
    rounds.run(profile.rounds)
    results = {cell: results.get(cell) or list(samples.values()) for cell, samples in rounds.samples.items()}
    check_same_work(results)
    return results


def cpus_of_cells() -> tuple[int, ...]:
    """Return the CPUs, by number, that every cell has: all that this process may use, or as many as FAIR_ETL_CPUS says.

    Raises
    ------
    ValueError
        If there are not as many.
    """
    # joblib knows what the container pays for, whatever commit of etl is installed.
    available = sorted(os.sched_getaffinity(0))[: joblib.cpu_count()]
    wanted = os.environ.get(CPUS_VARIABLE, str(len(available)))
    if not wanted.isdecimal() or not 0 < int(wanted) <= len(available):
        raise ValueError(f"{CPUS_VARIABLE}={wanted!r}: give a number from 1 to {len(available)}, the CPUs there are")
    return tuple(available[: int(wanted)])


def check_same_work(results: Results) -> None:
    """Raise `DifferentWork` unless cells of equal work loaded the same bytes in one order and trained to one score."""
    first: dict[tuple[Any, ...], tuple[Cell, Figures]] = {}
    for cell, samples in results.items():
        for sample in samples if not isinstance(samples, str) else []:
            other, expected = first.setdefault(cell.work, (cell, sample))
            for part, found, wanted in (
                ("digest", sample.digest, expected.digest),
                ("number of records", sample.epoch.samples, expected.epoch.samples),
            ):
                if found != wanted:
                    raise DifferentWork(f"the {part} of {cell} is {found}, that of {other} {wanted}")
            if not math.isclose(sample.score, expected.score, rel_tol=SCORE_TOLERANCE):
                raise DifferentWork(f"{cell} trained to {sample.score}, {other} to {expected.score}")


class CellServer(FreshServers):
    """A context manager around servers of `measure.prepare`; it can be entered again, and has another one then."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__(lambda: _start_server(conditions))

    def measure(self, cell: Cell) -> Figures:
        """Return the figures of `cell` from a fresh process, or raise `MeasurementError`."""
        return Figures.from_json(self.sample(str(cell), to_json(cell)))


def _start_server(conditions: Conditions) -> Server:
    return start_server(
        "a cell",
        "measure:prepare",
        conditions.to_json(),
        hash_seed=draw_hash_seed(),
        environment=draw_environment(),
    )
