"""Errors of predictions for other CPUs, compute and storage: `python -m benchmarks.studies.what_if [SOURCE]`.

A reference is a comparison that predicts what other ones measure: one CPU from two, a device that takes 0.1 to 4 times
as long, a device from training on the CPUs, a source that waits for every record, and files that are half in the
page cache. All take turns. Even turns predict, and odd ones judge: how far the even turns' own measurement of a
scenario is off bounds what any model can reach.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import etl
from benchmarks.console import say
from benchmarks.datasets import find_photographs
from benchmarks.journal import Kind, read_results
from benchmarks.measuring.page_cache import pages_outside
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, as_markdown, print_lines, run_study, study_parser

# Stores after every stage are written for strategies that read one, which takes long.
STRATEGIES, TRAINED_STRATEGIES = ("raw", "async-raw"), ("raw", "async-raw", "presaved", "async-presaved")
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
PHOTOGRAPHS, BATCH_SIZE, SIZE = 768, 16, 64
TURNS, ROUNDS = 8, 3
# Compute of the references: about as long as two CPUs take to load a batch of photographs.
COMPUTE_MS = 20.0
WAITING_SECONDS, WAITING_RECORDS, WAITING_COMPUTE_MS = 2e-3, 512, 16.0
# Images that take longer to read from a disk than to decode.
LARGE_IMAGES, LARGE_SIDE, LARGE_BATCH, LARGE_COMPUTE_MS, CACHED_SHARE = 256, 700, 8, 10.0, 0.5
# A prediction is good if it is off by this much, or at most so many times as far as the scenario measured again.
CLOSE, TIMES_AGAIN, WANTED_SHARE = 0.1, 2.0, 0.9


class WaitingSource:
    """Records that take `WAITING_SECONDS` each to arrive, and no CPU, as from a network."""

    thread_safe = True

    def __len__(self) -> int:
        return WAITING_RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(WAITING_SECONDS)
        return {"features": np.full(256, index, np.float32), "label": index % 2}


@dataclass(frozen=True)
class Case:
    """A comparison with settings of `etl.compare`, and the scenarios that it predicts, by name of another case.

    `cached` files stay in the page cache even if the comparison is cold.
    """

    name: str
    settings: dict[str, Any]
    predicts: dict[str, str] = field(default_factory=dict)
    cached: Sequence[Path] = ()


@dataclass(frozen=True)
class Predicted:
    """One prediction with what was measured: wall seconds of an epoch, medians of turns.

    Attributes
    ----------
    group, reference, scenario, strategy : str
        The group of the case that predicts, its name, that of the case which measures, and a strategy of both.
    predicted, again : float
        As predicted in the even turns, and as measured in them.
    measured : float
        As measured in the odd turns.
    extrapolated : list of str
        Why a report calls the prediction so; empty if it is interpolated in all turns.
    """

    group: str
    reference: str
    scenario: str
    strategy: str
    predicted: float
    again: float
    measured: float
    extrapolated: list[str] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Relative error of the prediction: 0.05 if it was 5% too long."""
        return self.predicted / self.measured - 1

    @property
    def error_again(self) -> float:
        """Relative difference of the scenario, measured again."""
        return self.again / self.measured - 1

    @property
    def is_good(self) -> bool:
        """True if it is off by at most `CLOSE`, or `TIMES_AGAIN` times as far as the scenario measured again."""
        return abs(self.error) <= max(CLOSE, TIMES_AGAIN * abs(self.error_again))


@dataclass(frozen=True)
class CaseEpoch(JsonValues):
    """An epoch of a strategy, as it was measured or predicted; `extrapolated` as in `Predicted`."""

    strategy: str
    wall_seconds: float
    extrapolated: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CaseResult(JsonValues):
    """The epochs that one comparison measured, and those that it predicted for each other case."""

    measured: list[CaseEpoch]
    predicted: Mapping[str, list[CaseEpoch]]


# Keys are a turn and the name of a case.
CASES: Kind[tuple[int, str], CaseResult] = Kind("what-if", tuple[int, str], CaseResult)


def run_case(case: Case) -> CaseResult:
    """Make the comparison of a case."""
    with held_in_page_cache(case.cached):
        report = etl.compare(what_if=tuple(case.predicts.values()), **case.settings)
    return CaseResult(
        [CaseEpoch(each.name, round(each.parts.wall_seconds, 5)) for each in report.strategies],
        {
            name: [
                CaseEpoch(one.strategy, round(one.wall_seconds, 5), list(one.extrapolated))
                for one in scenario.strategies
                if one.wall_seconds is not None
            ]
            for name, scenario in zip(case.predicts, report.scenarios, strict=True)
        },
    )


def predictions(results: Mapping[tuple[int, str], CaseResult], groups: Mapping[str, str]) -> list[Predicted]:
    """Return every prediction that was measured in even and in odd turns, with the group of its case."""
    measured: dict[tuple[str, str, int], list[float]] = {}
    predicted: dict[tuple[str, str, str], list[CaseEpoch]] = {}
    for (turn, case), result in results.items():
        for each in result.measured:
            measured.setdefault((case, each.strategy, turn % 2), []).append(each.wall_seconds)
        for name, epochs in result.predicted.items():
            for each in epochs if turn % 2 == 0 else ():
                predicted.setdefault((case, name, each.strategy), []).append(each)
    return [
        Predicted(
            groups[reference],
            reference,
            case,
            strategy,
            predicted=statistics.median(each.wall_seconds for each in made),
            again=statistics.median(measured[case, strategy, 0]),
            measured=statistics.median(measured[case, strategy, 1]),
            extrapolated=next((each.extrapolated for each in made if each.extrapolated), []),
        )
        for (reference, case, strategy), made in predicted.items()
        if (case, strategy, 0) in measured and (case, strategy, 1) in measured
    ]


def photograph_cases(source: str) -> dict[str, list[Case]]:
    """Return cases on photographs at `source`, by group: CPUs, and compute on a device and on the CPUs."""
    common = {"source": source, "batch_size": BATCH_SIZE, "size": SIZE, "strategies": STRATEGIES, "rounds": ROUNDS}

    def device(name: str, factor: float, predicts: dict[str, str] | None = None, cpus: int = 2) -> Case:
        compute = f"simulated:{factor * COMPUTE_MS:g}ms"
        return Case(name, {**common, "compute": compute, "threads": cpus}, predicts or {})

    def training(name: str, cpus: int, predicts: dict[str, str]) -> Case:
        return Case(name, {**common, "threads": cpus, "strategies": TRAINED_STRATEGIES}, predicts)

    by_factor = {f"device {factor:g}": f"compute={factor * COMPUTE_MS:g}ms" for factor in FACTORS}
    others = {name: text for name, text in by_factor.items() if name != "device 1"}
    return {
        "compute": [
            device("device 1", 1.0, {**others, "device 1 on 1 CPU": "cpus=1"}),
            *(device(f"device {factor:g}", factor) for factor in FACTORS if factor != 1.0),
        ],
        "CPUs": [
            device("device 1 on 1 CPU", 1.0, {"device 1": "cpus=2"}, cpus=1),
            training("training on 2 CPUs", 2, {"training on 1 CPU": "cpus=1", **by_factor}),
            training("training on 1 CPU", 1, {}),
        ],
    }


def waiting_cases() -> list[Case]:
    """Return cases with a source that waits for every record."""
    common = {
        "source": "benchmarks.studies.what_if:WaitingSource",
        "pipeline": etl.Pipeline([]),
        "batch_size": BATCH_SIZE,
        "strategies": STRATEGIES,
        "rounds": ROUNDS,
    }
    compute = {factor: f"{factor * WAITING_COMPUTE_MS:g}ms" for factor in (0.25, 1.0, 4.0)}

    def case(name: str, factor: float, cpus: int, predicts: dict[str, str]) -> Case:
        return Case(name, {**common, "compute": f"simulated:{compute[factor]}", "threads": cpus}, predicts)

    other = {f"waiting, device {factor:g}": f"compute={compute[factor]}" for factor in (0.25, 4.0)}
    return [
        case("waiting, device 1", 1.0, 2, {**other, "waiting, on 1 CPU": "cpus=1"}),
        case("waiting, on 1 CPU", 1.0, 1, {"waiting, device 1": "cpus=2"}),
        *(case(f"waiting, device {factor:g}", factor, 2, {}) for factor in (0.25, 4.0)),
    ]


def storage_cases(folder: Path) -> list[Case]:
    """Return comparisons of large images: read from the disk, half in the page cache, and all in it."""
    settings = {
        "source": str(folder),
        "cache": "cold",
        "compute": f"simulated:{LARGE_COMPUTE_MS:g}ms",
        "batch_size": LARGE_BATCH,
        "size": SIZE,
        "strategies": STRATEGIES,
        "threads": 2,
        "rounds": ROUNDS,
    }
    files = np.random.default_rng(0).permutation(np.array(sorted(folder.rglob("*.bmp"))))
    return [
        Case("cold", settings, {"half cached": f"cache={CACHED_SHARE:.0%}", "warm": "cache=100%"}),
        Case("half cached", settings, cached=files[: round(CACHED_SHARE * len(files))].tolist()),
        Case("warm", {**settings, "cache": "warm"}),
    ]


@contextlib.contextmanager
def held_in_page_cache(files: Sequence[Path]) -> Iterator[None]:
    """Keep files in the page cache: mapped pages cannot be dropped from it, and a cold comparison unmaps only others.

    Raises
    ------
    RuntimeError
        If the end of the block finds some of their pages dropped all the same.
    """
    with contextlib.ExitStack() as held:
        for path in files:
            with path.open("r+b") as file:  # pages that can be written are left alone
                held.enter_context(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
        yield
        if dropped := pages_outside(files):
            raise RuntimeError(f"{dropped} pages of the {len(files)} files were dropped from the page cache")


def write_large_images(folder: Path) -> None:
    """Write images that are not compressed: decoding them takes little CPU time, and reading them many bytes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(LARGE_IMAGES):
        path = folder / f"class{number % 2}" / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(256, size=(LARGE_SIDE, LARGE_SIDE, 3), dtype=np.uint8)).save(path)


def all_cases(source: str, images: Path) -> dict[str, list[Case]]:
    """Return all cases by group, in which `images` is the folder of large images."""
    return photograph_cases(source) | {"waiting": waiting_cases(), "storage": storage_cases(images)}


def groups_of(grouped: Mapping[str, Sequence[Case]]) -> dict[str, str]:
    """Return the group of each case by its name."""
    return {case.name: group for group, each in grouped.items() for case in each}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all comparisons in turns, and print the errors of their predictions."""
    options = parse(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        say("Two CPUs are needed: this process may use one.", Console(stderr=True), "red")
        return 2
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        images = Path(folder) / "images"
        write_large_images(images)
        grouped = all_cases(options.source or str(find_photographs(PHOTOGRAPHS)), images)
        cases = {case.name: case for each in grouped.values() for case in each}
        wanted = [
            (turn, name)
            for turn in range(options.turns)
            for name in np.random.default_rng(turn).permutation(list(cases)).tolist()
        ]

        def measure(key: tuple[int, str]) -> CaseResult:
            case = cases[key[1]]
            budget = {"budget": options.budget, "records": PHOTOGRAPHS}
            return run_case(replace(case, settings={**case.settings, **budget}))

        return run_study(
            CASES,
            options.samples or FOLDER / "what-if.jsonl",
            Plan(
                question="How far off are predictions of an epoch in another scenario?",
                arms="each scenario as predicted from another one, as measured, and as measured again",
                number=f"{options.turns} turns, in each of which every scenario is measured",
                nominal_error="none: errors are reported",
                stopping="when all turns are taken",
                exclusions="none",
                primary=f"interpolated predictions within {CLOSE:.0%}, or {TIMES_AGAIN:g} times as far off as again",
            ),
            {"budget": options.budget, "source": Path(options.source or "").name},
            wanted,
            measure,
            lambda results, console: show(predictions(results, groups_of(grouped)), console),
            lambda key: f"turn {key[0] + 1}: {key[1]}",
        )


def render(path: Path) -> str:
    """Return the errors by group of a journal, and those of all predictions, as Markdown."""
    grouped = all_cases("", Path("images"))  # only their names matter
    found = predictions(read_results(path, CASES), groups_of(grouped))
    return f"{as_markdown([ERRORS, *errors(found)])}\n\n{as_markdown([HEADINGS, *map(cells, found)])}\n"


HEADINGS = ("predicted from", "scenario", "strategy", "predicted, ms", "measured, ms", "error", "again", "")
ERRORS = ("predicted", "predictions", "median error", "again", "good", "largest error")


def show(found: Sequence[Predicted], console: Console) -> None:
    """Print every prediction with its error, and the errors of each group and of all."""
    print_lines("Predictions of an epoch", [HEADINGS, *map(cells, found)], console, keys=3)
    print_lines(f"Errors: the aim is {WANTED_SHARE:.0%} good", [ERRORS, *errors(found)], console)


def cells(each: Predicted) -> list[str]:
    """Return the line of a prediction."""
    return [
        each.reference,
        each.scenario,
        each.strategy,
        f"{1e3 * each.predicted:,.0f}",
        f"{1e3 * each.measured:,.0f}",
        f"{each.error:+.1%}",
        f"{each.error_again:+.1%}",
        "extrapolated" if each.extrapolated else "",
    ]


def errors(found: Sequence[Predicted]) -> list[list[str]]:
    """Return a line for each group of interpolated predictions, for all of them, and for the extrapolated ones."""
    interpolated = [each for each in found if not each.extrapolated]
    groups = {
        name: [each for each in interpolated if each.group == name]
        for name in dict.fromkeys(each.group for each in interpolated)
    }
    groups |= {"all interpolated": interpolated, "extrapolated": [each for each in found if each.extrapolated]}
    return [
        [
            name,
            str(len(each)),
            f"{statistics.median(abs(one.error) for one in each):.1%}",
            f"{statistics.median(abs(one.error_again) for one in each):.1%}",
            f"{sum(one.is_good for one in each) / len(each):.0%}",
            f"{max(abs(one.error) for one in each):.0%}",
        ]
        for name, each in groups.items()
        if each
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = study_parser("benchmarks.studies.what_if", __doc__, turns=TURNS)
    parser.add_argument("source", nargs="?", help=f"a folder of photographs (default: {PHOTOGRAPHS}, made once)")
    parser.add_argument(
        "--budget", type=float, default=20.0, metavar="SECONDS", help="of each comparison (default: 20)"
    )
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="for images on the disk (default: temporary)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
