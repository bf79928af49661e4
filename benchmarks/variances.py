"""Measure what makes samples of one strategy differ: `python -m benchmarks.variances SOURCE`.

Several servers are started, several processes forked from each, and several epochs run in each process, as a comparison
does with one process a server. Two equal arms take turns, so that their ratio has components, too. From these and from
what each level costs follow the epochs of a process and the processes of a server that Kalibera and Jones (2013,
doi:10.1145/2464157.2464160) choose. An interrupted study continues when it is run again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.console import print_table, say, say_failure, wide_console
from etl.comparison.preparation import opened_workload
from etl.comparison.processes import Processes
from etl.comparison.schedule import COMPUTE_SECONDS
from etl.comparison.settings import Settings
from etl.comparison.workload import Workload
from etl.measuring.processes import MeasurementError
from etl.measuring.values import JsonValues

FOLDER = Path(__file__).parents[1] / ".asv" / "variances"
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


@dataclass(frozen=True)
class Study(JsonValues):
    """The options that decide what is measured, and the servers so far."""

    options: dict[str, str]
    servers: list[ServerTimes]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the servers that are missing, and print the components; return 2 if that fails."""
    options = parse(arguments)
    errors = Console(stderr=True)
    path = options.samples or FOLDER / f"{Path(options.source).name}-{options.strategy}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    errors.print(f"Servers are kept in {path}.", highlight=False, soft_wrap=True)
    asked = {name: str(value) for name, value in vars(options).items() if name not in ("servers", "samples")}
    study = Study.from_json(json.loads(path.read_text())) if path.exists() else Study(asked, [])
    if study.options != asked:
        say_failure(ValueError(f"{path} was measured with {study.options}; name another file"), errors)
        return 2
    settings = Settings(options.source, (options.strategy,), records=options.records, batch_size=options.batch_size)
    try:
        with opened_workload(settings) as (workload, affinity), Processes(workload, affinity) as processes:
            workload.select(options.records)
            for number in range(len(study.servers), options.servers):
                errors.print(f"server {number + 1} of {options.servers}", highlight=False)
                measured = measure_server(workload, processes, options.processes, options.epochs)
                study = replace(study, servers=[*study.servers, measured])
                path.write_text(json.dumps(study.to_json()) + "\n")
    except (MeasurementError, ValueError) as error:
        say_failure(error, errors)
        return 2
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command continues from here.", highlight=False)
        return 130
    show(study, wide_console())
    return 0


def measure_server(workload: Workload, processes: Processes, count: int, epochs: int) -> ServerTimes:
    """Start a server, and measure processes of two equal arms in turn.

    Parameters
    ----------
    workload : Workload
        The work, with one strategy.
    processes : Processes
        Takes the samples.
    count : int
        Processes of each arm.
    epochs : int
        Epochs of each process.
    """
    (candidate,) = workload.candidates()
    began = time.monotonic()
    processes.renew()
    processes.tune(candidate, 1)  # a server is ready when it answers
    ready = time.monotonic()
    recipe = replace(workload.recipe(candidate), epochs=epochs, compute_seconds=COMPUTE_SECONDS)
    walls: list[list[list[float]]] = [[], []]
    for number in range(2 * count):  # A, B, B, A
        walls[number % 4 in (1, 2)].append(processes.measure(candidate, recipe).walls)
    timed = sum(map(sum, walls[0] + walls[1]))
    return ServerTimes(walls, ready - began, (time.monotonic() - ready - timed) / (2 * count))


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

    Parameters
    ----------
    variances : sequence of float
        Of servers, processes and epochs.
    costs : sequence of float
        Seconds that one more of each takes.
    """
    chosen = []
    for level in (0, 1):
        above, below = variances[level], variances[level + 1]
        ratio = below / above if above else math.inf if below else 1.0
        chosen.append(max(1.0, math.sqrt(costs[level] / costs[level + 1] * ratio)))
    return chosen


def show(study: Study, console: Console) -> None:
    """Print the components of an epoch's time and of the ratio of two arms, and what follows."""
    walls = np.log([each.walls for each in study.servers])  # by server, arm, process and epoch
    epoch = float(np.exp(walls).mean())
    costs = [
        float(np.mean([each.start_seconds for each in study.servers])),
        float(np.mean([each.process_seconds for each in study.servers])),
        epoch,
    ]
    table = Table(
        title=f"{study.options['strategy']}: {walls.shape[0]} servers, {walls.shape[2]} processes each of two equal "
        f"arms, {walls.shape[3]} epochs of {epoch:.2f} s each",
        caption="standard deviations of an epoch's time, and of the ratio of the arms, in percent",
    )
    table.add_column("of")
    for level in LEVELS:
        table.add_column(level, justify="right")
    table.add_column("epochs of a process", justify="right")
    table.add_column("processes of a server", justify="right")
    for name, values, times in (("time", walls[:, 0], 1), ("ratio", walls[:, 1] - walls[:, 0], 2)):
        found = components(values)
        processes, epochs = repetitions(found, [costs[0], times * costs[1], times * costs[2]])
        table.add_row(name, *(f"{100 * math.sqrt(each):.2f}" for each in found), f"{epochs:.1f}", f"{processes:.1f}")
    print_table(table, console, keys=1)
    say(f"One more costs: server {costs[0]:.2f} s, process {costs[1]:.2f} s, epoch {costs[2]:.2f} s.", console)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.variances", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("source", help="such as a folder of photographs")
    parser.add_argument("--strategy", default="raw", help="default: raw")
    for name, default in (("servers", 10), ("processes", 4), ("epochs", 4), ("records", 320), ("batch-size", 32)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="the file of servers (default: below .asv)")
    options = parser.parse_args(arguments)
    for name in ("servers", "processes", "epochs"):
        if getattr(options, name) < 2:
            parser.error(f"--{name} must be at least 2, to see how they differ")
    return options


if __name__ == "__main__":
    sys.exit(main())
