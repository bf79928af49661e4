"""Measure what makes samples of one strategy differ: `python -m benchmarks.studies.variances`.

Several servers are started, several processes forked from each, and several epochs run in each process, as a comparison
does with one process a server. Two equal arms take turns, so that their ratio has components, too. From these and from
what each level costs follow the epochs of a process and the processes of a server that Kalibera and Jones (2013,
doi:10.1145/2464157.2464160) choose. An interrupted study continues when it is run again.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.cells import STRATEGIES, Cell, Profile
from benchmarks.console import say
from benchmarks.journal import Kind, read_results
from benchmarks.measure import CellConditions, cpus_of_cells, loading_of
from benchmarks.measuring.fleet import Fleet
from benchmarks.measuring.layout import draw_hash_seed
from benchmarks.measuring.sample import Recipe, take_sample
from benchmarks.measuring.server import Answer, OpenSession, Request, every_answer
from benchmarks.measuring.values import JsonValues
from benchmarks.servers import import_everything, start_server
from benchmarks.studies.study import FOLDER, Plan, as_markdown, print_lines, run_study, study_parser
from benchmarks.workload import make_data

LEVELS = ("server", "process", "epoch")


@dataclass(frozen=True)
class ServerTimes(JsonValues):
    """All epochs of one server.

    Attributes
    ----------
    walls : list of list of list of float
        Wall seconds by arm, process and epoch.
    start_seconds : float
        Seconds until the server was ready.
    process_seconds : float
        Seconds of a process besides its timed epochs, on average.
    """

    walls: list[list[list[float]]]
    start_seconds: float
    process_seconds: float


SERVERS: Kind[int, ServerTimes] = Kind("variances", int, ServerTimes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the servers that are missing, and print the components; return 2 if that fails."""
    options = parse(arguments)
    cell = Cell(options.strategy)
    profile = Profile(
        "variances", options.photographs, options.image_size, rounds=1, seconds_per_figure=0.0, grid=False
    )
    with tempfile.TemporaryDirectory() as folder:

        @cache
        def conditions() -> CellConditions:
            return CellConditions(make_data(profile, Path(folder), [cell]), 0.0, cpus_of_cells())

        return run_study(
            SERVERS,
            options.samples or FOLDER / "variances.jsonl",
            Plan(
                question="How much do servers, processes and epochs differ?",
                arms="one strategy, and itself",
                number=f"{options.servers} servers, {options.processes} processes each, {options.epochs} epochs each",
                nominal_error="none: standard deviations are reported",
                stopping="when all servers are measured",
                exclusions="none",
                primary="components of the variance of the time, and of the ratio of two equal arms",
            ),
            {name: value for name, value in vars(options).items() if name not in ("servers", "samples")},
            range(options.servers),
            lambda _: measure_server(cell, conditions(), options.processes, options.epochs),
            lambda servers, console: show(options.strategy, list(servers.values()), console),
            lambda number: f"server {number + 1}",
        )


def measure_server(cell: Cell, conditions: CellConditions, count: int, epochs: int) -> ServerTimes:
    """Start a server, and measure processes of two equal arms in turn."""
    request = {"conditions": conditions.to_json(), "strategy": cell.strategy, "epochs": epochs}
    walls: list[list[list[float]]] = [[], []]
    with Fleet(
        lambda _: start_server("a cell", "studies.variances:prepare", request, hash_seed=draw_hash_seed())
    ) as server:
        server.wait_until_ready()
        began = time.monotonic()
        for number in range(2 * count):  # A, B, B, A
            walls[number % 4 in (1, 2)].append(list(server.sample(str(cell), {"number": number})["walls"]))
        taken = time.monotonic() - began
        timed = sum(map(sum, walls[0] + walls[1]))
        return ServerTimes(walls, server.start_seconds, (taken - timed) / (2 * count))


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything. A session is a process; its answer has the wall seconds of its epochs."""
    conditions, cell = CellConditions.from_json(request["conditions"]), Cell(request["strategy"])
    os.sched_setaffinity(0, conditions.cpus)
    import_everything()

    def answer(asked: Request) -> Answer:  # noqa: ARG001 - all are alike
        with loading_of(cell, conditions) as (loading, _):
            return {"walls": take_sample(loading, Recipe(epochs=request["epochs"])).walls}

    return {}, every_answer(answer)


def components(values: np.ndarray) -> list[float]:
    """Return the variances of servers, processes and epochs: each what the level below does not explain.

    Parameters
    ----------
    values : float64 array of shape (servers, processes, epochs)
        What was measured.
    """
    _, processes, epochs = values.shape
    of_processes = values.mean(axis=2)
    epoch = float(values.var(axis=2, ddof=1).mean())
    between_processes = float(of_processes.var(axis=1, ddof=1).mean())
    between_servers = float(of_processes.mean(axis=1).var(ddof=1))
    return [
        max(0.0, between_servers - between_processes / processes),
        max(0.0, between_processes - epoch / epochs),
        epoch,
    ]


def repetitions(variances: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Return how many processes of a server, and epochs of a process, give least variance in a given time.

    `costs` are the seconds that one more of each takes.
    """
    chosen = []
    for level in (0, 1):
        above, below = variances[level], variances[level + 1]
        ratio = below / above if above else math.inf if below else 1.0
        chosen.append(max(1.0, math.sqrt(costs[level] / costs[level + 1] * ratio)))
    return chosen


HEADINGS = ("standard deviation of", *LEVELS, "epochs of a process", "processes of a server")


def show(strategy: str, servers: Sequence[ServerTimes], console: Console) -> None:
    """Print the components of an epoch's time and of the ratio of two arms, and what follows."""
    print_lines(strategy, [HEADINGS, *rows(servers)], console)
    say(describe(servers), console)


def render(path: Path) -> str:
    """Return the table of a journal, and what was measured, as Markdown, or that there is too little for it."""
    servers = list(read_results(path, SERVERS).values())
    if len(servers) < 2:
        return "Not measured yet: how servers differ takes two of them.\n"
    return f"{as_markdown([HEADINGS, *rows(servers)])}\n\n{describe(servers)}\n"


def rows(servers: Sequence[ServerTimes]) -> list[list[str]]:
    """Return the components of an epoch's time and of the ratio of two equal arms, and the repetitions to choose."""
    walls = np.log([each.walls for each in servers])  # by server, arm, process and epoch
    costs, found = _costs(servers), []
    for name, values, times in (("an epoch", walls[:, 0], 1), ("the ratio of two arms", walls[:, 1] - walls[:, 0], 2)):
        variances = components(values)
        processes, epochs = repetitions(variances, [costs[0], times * costs[1], times * costs[2]])
        chosen = ("no limit" if math.isinf(each) else f"{each:.1f}" for each in (epochs, processes))
        found.append([name, *(f"{math.sqrt(each):.1%}" for each in variances), *chosen])
    return found


def describe(servers: Sequence[ServerTimes]) -> str:
    """Return how much was measured, and what one more of each level costs."""
    count, _, processes, epochs = np.shape([each.walls for each in servers])
    server, process, epoch = _costs(servers)
    return (
        f"{count} servers, {processes} processes each of two equal arms, {epochs} epochs each. "
        f"One more costs: server {server:.2f} s, process {process:.2f} s, epoch {epoch:.2f} s."
    )


def _costs(servers: Sequence[ServerTimes]) -> list[float]:
    return [
        float(np.mean([each.start_seconds for each in servers])),
        float(np.mean([each.process_seconds for each in servers])),
        float(np.mean([each.walls for each in servers])),
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = study_parser(
        "benchmarks.studies.variances", __doc__, servers=10, processes=4, epochs=4, photographs=320, image_size=128
    )
    parser.add_argument("--strategy", choices=tuple(STRATEGIES), default="raw", help="default: raw")
    options = parser.parse_args(arguments)
    for name in ("servers", "processes", "epochs"):
        if getattr(options, name) < 2:
            parser.error(f"--{name} must be at least 2, to see how they differ")
    return options


if __name__ == "__main__":
    sys.exit(main())
