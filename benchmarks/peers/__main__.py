"""Compare the loaders of other projects with this project's, on the same photographs: `python -m benchmarks.peers`.

It is `etl compare` with the loaders of this folder as strategies, each in an environment of its own below .asv/peers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

import etl
from benchmarks.console import comma_separated, say, say_failure, wide_console
from benchmarks.datasets import find_photographs
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.statistics import MIN_ROUNDS
from benchmarks.peers.environments import NotInstalled, find_versions, make_environment
from benchmarks.peers.peer_results import RESULTS, collect, save
from benchmarks.peers.peer_table import CAPTION, show
from benchmarks.peers.rows import OURS, PEERS, ROWS, TASKS, Row
from benchmarks.servers import ROOT
from etl.arguments import parse_seconds
from etl.commands.output import check_file_path, save_json
from etl.comparison.compare import run_comparison
from etl.comparison.request.settings import Settings
from etl.comparison.run.comparison_progress import ComparisonProgress

FOLDER = ROOT / ".asv" / "peers"
# Compute that leaves the CPU free, as a step on a GPU does.
COMPUTE = "simulated:50ms"
# Decides how long a loader is tried before the comparison, and when one that hangs is given up.
BUDGET_SECONDS = 450.0
# The key of the interpreter for all peers that have none of their own.
ALL = ""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return 2 if the call was wrong or nothing could be measured."""
    options = parse(arguments)
    errors, console = Console(stderr=True), wide_console()
    interpreters = dict(options.python)
    reports: dict[str, etl.Report] = {}
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        check_file_path(options.json, "--json")
        photographs = make_inputs(find_photographs(options.photographs), FOLDER / f"photographs-{options.photographs}")
        for task in TASKS if options.task == "all" else (options.task,):
            rows = [row for row in ROWS if row.task == task and (row.name == OURS or row.peer in options.only)]
            pythons, missing = find_interpreters(rows, interpreters, errors)
            compared = [row for row in rows if row.name in pythons]
            if not compared:
                say_failure(f"{task}: no loader could be installed: {next(iter(missing.values()))}", errors)
                return 2
            with errors.status(task) as status:
                settings = settings_of(compared, pythons, photographs, options)
                report = run_comparison(settings, _progress(task, status, errors))
            results = collect(report, rows, missing, options.tune_budget)
            show(results, report.notes, console)
            reports[task] = report
            save_json(options.json, {name: each.as_dict() for name, each in reports.items()})
            if options.save is not None and not report.stopped_early:
                used = {row.peer: pythons[row.name] for row in compared}
                given = sys.argv[1:] if arguments is None else arguments
                path = save(results, options.save, given, used, find_versions)
                say(f"saved to {path}", errors)
            if report.stopped_early:
                break
    except KeyboardInterrupt:
        errors.print("Interrupted before a round was complete.", highlight=False)
        return INTERRUPTED
    except (MeasurementError, ValueError) as error:
        say_failure(error, errors)
        return 2
    say(CAPTION, console)
    return INTERRUPTED if any(each.stopped_early for each in reports.values()) else 0


def settings_of(
    rows: Sequence[Row], pythons: Mapping[str, str], photographs: Path, options: argparse.Namespace
) -> Settings:
    """Return the settings of a comparison.

    Parameters
    ----------
    photographs : path
        What `make_inputs` returned.
    """
    return Settings(
        source=str(photographs),
        strategies=tuple(row.strategy for row in rows),
        pythons={row.name: pythons[row.name] for row in rows},
        search=(str(ROOT),),
        batch_size=options.batch_size,
        threads=options.threads,
        rounds=options.rounds,
        etl_alone_rounds=options.rounds,
        records=options.photographs,
        compute=COMPUTE,
        budget_seconds=BUDGET_SECONDS,
        **tuning_of(options),
    )


def tuning_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that tune every row for the same time, beside the row as documented; none without a budget.

    The comparison then has a second strategy for each row, which `results.tuned_name` names.
    """
    return {} if options.tune_budget is None else {"tune_seconds": options.tune_budget}


def make_inputs(source: Path, folder: Path) -> Path:
    """Copy the photographs of the image folder `source` to `folder`, unless they are there, and return it.

    Each has a folder of its own, `000017/photograph.jpg`, so that its label tells which one it is.
    """
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for number, file in enumerate(etl.ImageFolder(source).files):
            target = unfinished / f"{number:06d}" / "photograph.jpg"
            target.parent.mkdir(parents=True)
            shutil.copyfile(source / file, target)
        os.rename(unfinished, folder)
    return folder


def find_interpreters(
    rows: Sequence[Row], given: Mapping[str, str], errors: Console
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreter of each row, and the reason for each row that has none, by name.

    Parameters
    ----------
    given : mapping of str to str
        Interpreters to use instead of environments, by peer; the one under `ALL` is for all other peers.
    """
    interpreters: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for peer in dict.fromkeys(row.peer for row in rows):
        chosen = given.get(peer) or given.get(ALL)
        try:
            with errors.status(f"installing {peer}"):
                interpreters[peer] = chosen or make_environment(peer, FOLDER / "environments")
        except NotInstalled as error:
            reasons[peer] = str(error)
            say_failure(f"{peer} is left out: {error}", errors)
    return (
        {row.name: interpreters[row.peer] for row in rows if row.peer in interpreters},
        {row.name: reasons[row.peer] for row in rows if row.peer in reasons},
    )


def _progress(task: str, status: Status, errors: Console) -> Callable[[ComparisonProgress], None]:
    """Return a function that shows each step of a comparison: in place, or on a line of its own in a pipe.

    Parameters
    ----------
    errors : Console
        The console of `status`.
    """
    shown = ""

    def show_step(progress: ComparisonProgress) -> None:
        nonlocal shown
        step = f"{task}: {progress.phase}, {progress.done} of {progress.total} done"
        status.update(step)
        if step != shown and not errors.is_terminal:
            errors.print(step, highlight=False)
        shown = step

    return show_step


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rounds",
        type=_above_zero,
        default=MIN_ROUNDS,
        metavar="N",
        help=f"interleaved rounds (default: {MIN_ROUNDS}, the fewest that give a ratio an interval of 95%%)",
    )
    parser.add_argument("--photographs", type=_above_zero, default=2048, metavar="N", help="default: 2048")
    parser.add_argument("--batch-size", type=_above_zero, default=64, metavar="N", help="default: 64")
    parser.add_argument(
        "--threads",
        type=_above_zero,
        default=2,
        metavar="N",
        help="threads or workers, and cores for them (default: 2)",
    )
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all", help="work to compare (default: all)")
    parser.add_argument(
        "--only",
        type=comma_separated(PEERS, "peer"),
        default=PEERS,
        metavar="NAME,NAME",
        help=f"only some of {', '.join(PEERS)}, beside this project's own",
    )
    parser.add_argument(
        "--python",
        type=_interpreter,
        action="append",
        default=[],
        metavar="[NAME=]PYTHON",
        help="use this interpreter for a peer, or for all of them, instead of making an environment",
    )
    parser.add_argument(
        "--tune-budget",
        type=_seconds,
        metavar="TIME",
        help="tune each loader for this long, such as 60s, and compare it both as documented and tuned",
    )
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=RESULTS,
        metavar="FOLDER",
        help="write the raw rounds of each task to a file of FOLDER, by default the one that is committed; "
        "`python -m benchmarks.peers.documents` makes the tables of the documents of them",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports to FILE, by task")
    return parser.parse_args(arguments)


def _interpreter(given: str) -> tuple[str, str]:
    name, _, path = given.rpartition("=")
    if name not in (*PEERS, ALL):
        raise argparse.ArgumentTypeError(f"no peer is called {name}; there are {', '.join(PEERS)}")
    return name, path


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text, "--tune-budget")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _above_zero(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
