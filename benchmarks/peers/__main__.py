"""Compare the loaders of other projects with this project's, on the same photographs: `python -m benchmarks.peers`.

This project's loader alternates with each of the others. Every loader is opened, warmed, timed in literal `for` loops
for at least half a second, and closed, each time in a fresh process of an environment of its own below .asv/peers.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import etl
from benchmarks.console import comma_separated, say_failure, wide_console
from benchmarks.datasets import SEED, find_photographs
from benchmarks.journal import Journal, read_results
from benchmarks.measuring.statistics import Interval
from benchmarks.peers.environments import NotInstalled, find_versions, make_environment
from benchmarks.peers.pairs import (
    DOCUMENTED,
    PAIRS,
    TRIALS,
    TUNED,
    Key,
    Loader,
    PairResult,
    Work,
    ratio_of,
    tuned_arguments,
)
from benchmarks.peers.peer_table import show
from benchmarks.peers.rows import AGAIN, OURS, PEERS, ROWS, SLOWED, TASKS, Row
from benchmarks.servers import ROOT
from benchmarks.studies.study import FOLDER as RESULTS
from benchmarks.studies.study import (
    Plan,
    describe_environment,
    refuse_other_environment,
    run_study,
    say_complete,
    study_parser,
)

FOLDER = ROOT / ".asv" / "peers"
# Pairs of each row; of a row that is close, until its interval is this narrow on either side, or there are so many.
COUNT, MAX_COUNT, HALF_WIDTH = 8, 16, 0.03
# Rows whose rate is within this share of ours are close: a setting could decide which is faster.
CLOSE = 0.2
# The key of the interpreter for all peers that have none of their own.
ALL = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the pairs that are missing, and print the tables; return 2 if the call was wrong."""
    options = parse(arguments)
    errors = Console(stderr=True)
    path = options.samples or RESULTS / "peers.jsonl"
    asked = [row for row in ROWS if row.task in options.task and row.peer in (PEERS[0], *options.only)]
    size = {name: getattr(options, name) for name in ("photographs", "batch_size", "workers")}
    environment: dict[str, Any] | None = None
    if options.samples is None:  # now, because environments take long to make
        try:
            committed = Journal(PAIRS, path, size).results
            if any(key not in committed for key in wanted_pairs(committed, asked, options.pairs)):
                environment = describe_environment()
                refuse_other_environment(path, environment)
            else:
                say_complete(path, errors)
                show(path, wide_console())
                return 0
        except ValueError as error:
            say_failure(error, errors)
            return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    photographs = make_inputs(find_photographs(options.photographs), FOLDER / f"photographs-{options.photographs}")
    pythons, missing = find_interpreters(options.only, dict(options.python), errors)
    if PEERS[0] not in pythons:
        say_failure(f"nothing was measured: all others are compared with {PEERS[0]}", errors)
        return 2
    rows = {(row.task, row.name): row for row in asked if row.peer in pythons}
    prepared = FOLDER / f"prepared-{options.photographs}"
    work = Work(photographs, prepared, options.photographs, options.batch_size, options.workers)

    def measure(key: Key) -> PairResult:
        task, name, arm, number = key
        row, ours = rows[task, name], rows[task, OURS]
        python, own = pythons[row.peer], pythons[ours.peer]
        results = read_results(path, PAIRS)
        if arm == DOCUMENTED:
            return work.take(Loader(ours, own, {}), Loader(row, python, {}), number)
        if arm == TUNED:
            base = Loader(ours, own, tuned_arguments(results, task, OURS))
            return work.take(base, Loader(row, python, tuned_arguments(results, task, name)), number)
        name_of_setting, value = arm.split("=")
        alternatives = results[task, name, DOCUMENTED, 0].alternatives[name_of_setting]
        tried = {name_of_setting: next(each for each in alternatives if str(each) == value)}
        return work.take(Loader(row, python, {}), Loader(row, python, tried), number)

    return run_study(
        PAIRS,
        path,
        Plan(
            question="How fast are other loaders, of this project's?",
            arms="this project's loader and each row in turn, in fresh processes; two rows are this project's again",
            number=f"{options.pairs} pairs; {MAX_COUNT} at most within {CLOSE:.0%} of 1, where settings are tuned",
            nominal_error="5% for each interval",
            stopping=f"{options.pairs} pairs; within {CLOSE:.0%} of 1, an interval of {HALF_WIDTH:.0%} on either side",
            exclusions="rows that fail or lack records, with the reason",
            primary="images/s of loading alone, divided by this project's in the same pair",
        ),
        {
            **size,
            "packages": {peer: find_versions(python, peer) for peer, python in pythons.items()},
            "missing": missing,
        },
        lambda results: wanted_pairs(results, list(rows.values()), options.pairs),
        measure,
        lambda _, console: show(path, console),
        lambda key: f"{key[0]}, {key[1]}, {key[2]}, pair {key[3] + 1}",
        environment,
    )


def wanted_pairs(results: Mapping[Key, PairResult], rows: Sequence[Row], count: int) -> list[Key]:
    """Return the keys of all pairs that `results` ask for: first every row as documented, then close rows tuned."""
    others = [(row.task, row.name) for row in rows if row.name != OURS]
    documented = [(task, OURS, DOCUMENTED, 0) for task in TASKS if any(each[0] == task for each in others)]
    documented += _in_turn(((*each, DOCUMENTED) for each in others if not _failed(results, *each)), range(count))
    if any(key not in results for key in documented if not _failed(results, *key[:2])):
        return documented
    close = [each for each in others if _is_close(results, *each)]
    tried = [*((task, OURS) for task in {each[0] for each in close}), *close]
    trials = _in_turn(
        (
            (*each, f"{name}={value}")
            for each in tried
            if each[1] not in (AGAIN, SLOWED)
            for name, values in results[(*each, DOCUMENTED, 0)].alternatives.items()
            for value in values
        ),
        range(TRIALS),
    )
    wanted = [*documented, *trials]
    if any(key not in results for key in trials):
        return wanted
    tuned = [
        (*each, TUNED)
        for each in close
        if each[1] not in (AGAIN, SLOWED)
        and (tuned_arguments(results, *each) or tuned_arguments(results, each[0], OURS))
    ]
    wanted += _in_turn(tuned, range(count))
    for arm in (*((*each, DOCUMENTED) for each in close), *tuned):
        taken = [each for key, each in results.items() if key[:3] == arm]
        has_failed = any(each.failure for each in taken)
        if count <= len(taken) < MAX_COUNT and not has_failed and not is_narrow(ratio_of(taken)):
            wanted += [(*arm, len(taken))]
        wanted += [(*arm, number) for number in range(count, len(taken))]
    return wanted


def _in_turn(arms: Iterable[tuple[str, str, str]], numbers: range) -> list[Key]:
    """Return the keys of pairs, each number of all arms, in a drawn order, before the next one."""
    chosen, found = list(arms), []
    for number in numbers:
        random.Random(SEED + number).shuffle(chosen)
        found += [(*each, number) for each in chosen]
    return found


def is_narrow(ratio: Interval) -> bool:
    """Return whether both ends of the interval are within `HALF_WIDTH` of the estimate."""
    ends = (ratio.low or 0.0, ratio.high or math.inf)
    return all(abs(end / ratio.estimate - 1) <= HALF_WIDTH for end in ends)


def _failed(results: Mapping[Key, PairResult], task: str, name: str) -> bool:
    return any(each.failure for key, each in results.items() if key[:3] == (task, name, DOCUMENTED))


def _is_close(results: Mapping[Key, PairResult], task: str, name: str) -> bool:
    if _failed(results, task, name):
        return False
    estimate = ratio_of(each for key, each in results.items() if key[:3] == (task, name, DOCUMENTED)).estimate
    return 1 - CLOSE <= estimate <= 1 / (1 - CLOSE)


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
    peers: Iterable[str], given: Mapping[str, str], errors: Console
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreter of each peer, and the reason for each that has none.

    Those `given` by peer are used instead of environments; the one under `ALL` is for all other peers.
    """
    interpreters: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for peer in dict.fromkeys([PEERS[0], *peers]):  # this project's own is always one of them
        try:
            with errors.status(f"installing {peer}"):
                chosen = given.get(peer) or given.get(ALL)
                interpreters[peer] = chosen or make_environment(peer, FOLDER / "environments")
        except NotInstalled as error:
            reasons[peer] = str(error)
            say_failure(f"{peer} is left out: {error}", errors)
    return interpreters, reasons


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = study_parser("benchmarks.peers", __doc__, pairs=COUNT, photographs=2048, batch_size=64, workers=2)
    parser.add_argument(
        "--task",
        type=comma_separated(TASKS, "task"),
        default=TASKS,
        metavar="NAME,NAME",
        help=f"only some of {', '.join(TASKS)}",
    )
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
    return parser.parse_args(arguments)


def _interpreter(given: str) -> tuple[str, str]:
    name, _, path = given.rpartition("=")
    if name not in (*PEERS, ALL):
        raise argparse.ArgumentTypeError(f"no peer is called {name}; there are {', '.join(PEERS)}")
    if shutil.which(path) is None:
        raise argparse.ArgumentTypeError(f"{path!r} is not a program")
    return name, path


if __name__ == "__main__":
    sys.exit(main())
