"""Print asv's results of the strategies as one table: `python -m benchmarks.publish.history_table [COMMIT]`."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv.config import Config
from asv.results import iter_results
from rich.console import Console
from rich.table import Table

from benchmarks.cells import Cell, Profile, chosen_profile
from benchmarks.compare_commits.commits import find_commit
from benchmarks.console import print_table, say, tables, wide_console
from benchmarks.measuring.statistics import MIN_ROUNDS, Interval, ratio_intervals

SUITE = "end_to_end.Strategy"
WALL = f"{SUITE}.track_wall"
PRESAVING = "end_to_end.PresavingByFormat"
METRICS = ("etl", "compute", "wall", "stall")
# The strategy that the others are compared with.
BASE = "raw"


@dataclass(frozen=True)
class StrategySamples:
    """asv's results of one commit.

    Attributes
    ----------
    samples : mapping
        Seconds by strategy and metric, one a round.
    presaving : (float, float) or None
        Seconds and bytes that presaving cost once; None if that suite was not run.
    """

    samples: Mapping[str, Mapping[str, Sequence[float]]]
    presaving: tuple[float, float] | None


def main(arguments: Sequence[str]) -> int:
    """Print the table of the commit in `arguments`, or of HEAD; return 1 if asv has no samples of it, 2 if it fails."""
    conf = Config.load("asv.conf.json")
    try:
        profile = chosen_profile()
        commit = find_commit(arguments[0] if arguments else "HEAD", Path.cwd())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    measured = read_samples(Path(conf.results_dir), commit, profile)
    if measured is None:
        print(
            f"asv has no samples of commit {commit[:8]} in profile {profile.name!r}: "
            f"run `asv run --record-samples {commit[:8]}^!`",
            file=sys.stderr,
        )
        return 1
    console = wide_console()
    show(measured, commit, profile, console)
    say(f"The history is in {Path(conf.html_dir).resolve()}; `make preview` shows it in a browser.", console)
    return 0


def read_samples(results_dir: Path, commit: str, profile: Profile) -> StrategySamples | None:
    """Return the newest samples of a commit among asv's results of all machines, or None.

    All strategies of the profile are needed; user loaders are left out if they were not measured.
    """
    found = [each for each in results_of(results_dir, profile) if each.commit_hash == commit]
    if not found:
        return None
    result = found[-1]
    samples = {
        strategy: {metric: samples_of(result, metric, repr(strategy)) for metric in METRICS}
        for strategy in (*profile.strategies, *profile.functions)
    }
    measured = {strategy: metrics for strategy, metrics in samples.items() if all(metrics.values())}
    if not measured.keys() >= set(profile.strategies):
        return None
    seconds, nbytes = _presaving(result, "write_time"), _presaving(result, "store_size")
    return StrategySamples(measured, None if seconds is None or nbytes is None else (seconds, nbytes))


def show(measured: StrategySamples, commit: str, profile: Profile, console: Console) -> None:
    """Print means over rounds, ratios of wall times, and the cost of presaving."""
    means = {
        strategy: {metric: statistics.fmean(values) for metric, values in metrics.items()}
        for strategy, metrics in measured.samples.items()
    }
    rounds = len(next(iter(measured.samples.values()))["wall"])
    longest = max(metrics["wall"] for metrics in means.values())
    table = Table(
        title=f"One epoch of {profile.samples:,} photographs at {profile.image_size} x {profile.image_size}, "
        f"commit {commit[:8]}, mean of {_rounds(rounds)}",
        caption="ms; ETL: loading alone; wall = compute █ + stall ░ + the loop itself",
    )
    table.add_column("strategy")
    for column in ("ETL", "compute", "wall", "stall", "samples/s"):
        table.add_column(column, justify="right")
    table.add_column("")
    for strategy, metrics in means.items():
        table.add_row(
            strategy,
            *(f"{metrics[metric] * 1e3:,.1f}" for metric in METRICS),
            f"{profile.samples / metrics['wall']:,.0f}",
            tables.Bar([("█", "green", metrics["compute"] / longest), ("░", "red", metrics["stall"] / longest)]),
        )
    print_table(table, console)
    ratios = wall_ratios({strategy: metrics["wall"] for strategy, metrics in measured.samples.items()})
    for strategy, ratio in ratios.items():
        spread = f"{_rounds(rounds)}, and an interval takes {MIN_ROUNDS}"
        if ratio.low is not None:
            spread = f"95% interval {ratio.low:.2f} to {ratio.high:.2f}"
        say(f"wall time {strategy} / {BASE}: {ratio.estimate:.2f} ({spread})", console)
    if measured.presaving is not None:
        say(_presaving_cost(*measured.presaving, means), console)


def wall_ratios(walls: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Return the ratio of each strategy's wall time to that of `BASE`, with intervals that hold together.

    Parameters
    ----------
    walls : mapping of str to sequence of float
        Seconds of each strategy, one value a round. If one lacks rounds, there are no pairs, and so no intervals.
    """
    if BASE not in walls:
        return {}
    if len({len(each) for each in walls.values()}) > 1:
        walls = {name: [statistics.fmean(each)] for name, each in walls.items()}
    return ratio_intervals({name: dict(enumerate(each)) for name, each in walls.items()}, BASE)


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"


def results_of(results_dir: Path, profile: Profile) -> list[Any]:
    """Return asv's results, of all machines, that have the strategies in a profile; those measured last come last."""
    found = [each for each in iter_results(str(results_dir)) if each.benchmark_version.get(WALL) == profile.version]
    return sorted(found, key=lambda each: each.started_at[WALL])


def samples_of(result: Any, metric: str, parameter: str) -> list[float]:
    """Return the samples of a strategy, one a round; none if there are none."""
    (samples,) = result.get_result_samples(f"{SUITE}.track_{metric}", [[parameter]])
    return samples or []


def _presaving(result: Any, metric: str) -> float | None:
    """Return what the store of the base point cost, or None if that suite was not run."""
    name = f"{PRESAVING}.track_{metric}"
    if name not in result.get_all_result_keys():
        return None
    (value,) = result.get_result_value(name, [[repr(Cell().presave_format)]])
    return None if value is None or math.isnan(value) else float(value)


def _presaving_cost(seconds: float, nbytes: float, means: Mapping[str, Mapping[str, float]]) -> str:
    cost = f"presaving took {seconds:.2f} s and {nbytes / 1e6:.1f} MB once"
    if not {"raw", "presaved"} <= means.keys():
        return cost
    gain = means["raw"]["wall"] - means["presaved"]["wall"]
    if gain <= 0:
        return f"{cost}, and gained nothing"
    return f"{cost}, which pays off after {seconds / gain:.1f} epochs"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
