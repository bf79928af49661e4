"""Errors of predictions for other CPUs, compute and storage: `python -m benchmarks.studies.what_if [SOURCE]`.

A reference is a comparison that predicts what the other ones measure: one CPU from two and two from one, a device that
takes 0.1 to 4 times as long, training on the CPUs from a device and the reverse, a source that waits for every record,
and files half of which are in the page cache. All take turns, and errors are those of the median over the turns.
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
from rich.table import Table

import etl
from benchmarks.console import print_table, say
from benchmarks.datasets import find_photographs
from benchmarks.journal import Kind
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, run_study, study_parser

# Stores after every stage are written for strategies that read one, which takes long.
STRATEGIES, TRAINED_STRATEGIES = ("raw", "async-raw"), ("raw", "async-raw", "presaved", "async-presaved")
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
PHOTOGRAPHS, BATCH_SIZE, SIZE = 768, 16, 64
TURNS, ROUNDS = 2, 3
# Compute of the references: about as long as two CPUs take to load a batch of photographs.
COMPUTE_MS = 20.0
WAITING_SECONDS, WAITING_RECORDS, WAITING_COMPUTE_MS = 2e-3, 512, 16.0
# Images that take longer to read from a disk than to decode.
LARGE_IMAGES, LARGE_SIDE, LARGE_BATCH, LARGE_COMPUTE_MS, CACHED_SHARE = 256, 700, 8, 10.0, 0.5
CLOSE, WANTED_MEDIAN, WANTED_SHARE = 0.1, 0.05, 0.9


class WaitingSource:
    """Records that take `WAITING_SECONDS` each to arrive, and no CPU, as from a network."""

    thread_safe = True

    def __len__(self) -> int:
        return WAITING_RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(WAITING_SECONDS)
        return {"features": np.full(256, index, np.float32), "label": index % 2}


def waiting_source() -> WaitingSource:
    """Return a source that waits."""
    return WaitingSource()


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
class Predicted(JsonValues):
    """One prediction with what was measured: wall seconds of an epoch, and utilisation; medians of all turns.

    `extrapolated` has the reasons for which the report calls the prediction so; none if it is interpolated.
    """

    group: str
    reference: str
    scenario: str
    strategy: str
    predicted_seconds: float
    measured_seconds: float
    predicted_utilisation: float
    measured_utilisation: float
    extrapolated: list[str] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Relative error of the wall time: 0.05 if the prediction was 5% too long."""
        return self.predicted_seconds / self.measured_seconds - 1


@dataclass(frozen=True)
class CaseEpoch(JsonValues):
    """An epoch of a strategy, as it was measured or predicted; `extrapolated` as in `Predicted`."""

    strategy: str
    wall_seconds: float
    utilisation: float
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
        [CaseEpoch(each.name, each.parts.wall_seconds, each.accelerator_utilisation) for each in report.strategies],
        {
            name: [
                CaseEpoch(one.strategy, one.wall_seconds, one.accelerator_utilisation, list(one.extrapolated))
                for one in scenario.strategies
                if one.wall_seconds is not None and one.accelerator_utilisation is not None
            ]
            for name, scenario in zip(case.predicts, report.scenarios, strict=True)
        },
    )


def predictions(results: Mapping[tuple[int, str], CaseResult], groups: Mapping[str, str]) -> list[Predicted]:
    """Return every prediction that was measured, with the group of its case: medians of all turns."""
    measured: dict[tuple[str, str], list[CaseEpoch]] = {}
    predicted: dict[tuple[str, str, str], list[CaseEpoch]] = {}
    for (_, case), result in results.items():
        for each in result.measured:
            measured.setdefault((case, each.strategy), []).append(each)
        for name, epochs in result.predicted.items():
            for each in epochs:
                predicted.setdefault((case, name, each.strategy), []).append(each)
    return [
        Predicted(
            groups[reference],
            reference,
            case,
            strategy,
            predicted_seconds=statistics.median(each.wall_seconds for each in made),
            measured_seconds=statistics.median(each.wall_seconds for each in measured[case, strategy]),
            predicted_utilisation=statistics.median(each.utilisation for each in made),
            measured_utilisation=statistics.median(each.utilisation for each in measured[case, strategy]),
            extrapolated=made[-1].extrapolated,
        )
        for (reference, case, strategy), made in predicted.items()
        if (case, strategy) in measured
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
            training("training on 1 CPU", 1, {"training on 2 CPUs": "cpus=2"}),
        ],
    }


def waiting_cases() -> list[Case]:
    """Return cases with a source that waits for every record."""
    common = {
        "source": "benchmarks.studies.what_if:waiting_source",
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
    """Keep files in the page cache: pages that a process maps cannot be dropped from it."""
    with contextlib.ExitStack() as held:
        for path in files:
            with path.open("rb") as file:
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                held.enter_context(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ))
        yield


def write_large_images(folder: Path) -> None:
    """Write images that are not compressed: decoding them takes little CPU time, and reading them many bytes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(LARGE_IMAGES):
        path = folder / f"class{number % 2}" / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(256, size=(LARGE_SIDE, LARGE_SIDE, 3), dtype=np.uint8)).save(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all comparisons in turns, and print the errors of their predictions."""
    options = parse(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        say("Two CPUs are needed: this process may use one.", Console(stderr=True), "red")
        return 2
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        images = Path(folder) / "images"
        write_large_images(images)
        grouped = photograph_cases(options.source or str(find_photographs(PHOTOGRAPHS)))
        grouped |= {"waiting": waiting_cases(), "storage": storage_cases(images)}
        cases = {case.name: case for each in grouped.values() for case in each}
        groups = {case.name: group for group, each in grouped.items() for case in each}
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
                arms="each scenario as predicted from others, and as measured",
                number=f"{options.turns} turns, in each of which every scenario is measured",
                nominal_error="none: errors are reported",
                stopping="when all turns are taken",
                exclusions="none",
                primary="share of interpolated predictions that are off by at most 10%",
            ),
            {"budget": options.budget, "source": Path(options.source or "").name},
            wanted,
            measure,
            lambda results, console: show(predictions(results, groups), console),
            lambda key: f"turn {key[0] + 1}: {key[1]}",
        )


def show(found: Sequence[Predicted], console: Console) -> None:
    """Print every prediction with its error, and the errors of each group and of all."""
    table = Table(title="Predictions of an epoch, in ms")
    for column in ("predicted from", "scenario", "strategy"):
        table.add_column(column)
    for column in ("predicted", "measured", "error", "utilisation", "measured utilisation"):
        table.add_column(column, justify="right")
    table.add_column("")
    for each in found:
        table.add_row(
            each.reference,
            each.scenario,
            each.strategy,
            f"{1e3 * each.predicted_seconds:,.0f}",
            f"{1e3 * each.measured_seconds:,.0f}",
            f"{each.error:+.1%}",
            f"{each.predicted_utilisation:.0%}",
            f"{each.measured_utilisation:.0%}",
            "extrapolated" if each.extrapolated else "",
        )
    print_table(table, console, keys=3)
    errors = Table(title=f"Errors: aim {WANTED_MEDIAN:.0%} in the median, {WANTED_SHARE:.0%} within {CLOSE:.0%}")
    errors.add_column("group")
    for column in ("predictions", "median", "within 10%", "largest"):
        errors.add_column(column, justify="right")
    interpolated = [each for each in found if not each.extrapolated]
    groups = {
        name: [each for each in interpolated if each.group == name]
        for name in dict.fromkeys(each.group for each in interpolated)
    }
    groups |= {"all interpolated": interpolated, "extrapolated": [each for each in found if each.extrapolated]}
    for group, predictions in groups.items():
        if not predictions:
            continue
        errors.add_row(group, *describe_errors(predictions))
    print_table(errors, console)


def describe_errors(found: Sequence[Predicted]) -> list[str]:
    """Return the number of predictions, their median error without signs, the share within 10%, and the largest."""
    errors = [abs(each.error) for each in found]
    close = sum(each <= CLOSE for each in errors) / len(errors)
    return [str(len(errors)), f"{statistics.median(errors):.1%}", f"{close:.0%}", f"{max(errors):.0%}"]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = study_parser("benchmarks.studies.what_if", __doc__, turns=TURNS)
    parser.add_argument("source", nargs="?", help=f"a folder of photographs (default: {PHOTOGRAPHS}, made once)")
    parser.add_argument(
        "--budget", type=float, default=20.0, metavar="SECONDS", help="of each comparison (default: 20)"
    )
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="for images on the disk (default: temporary)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
