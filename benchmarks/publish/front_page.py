"""An asv publisher that writes a front page: the newest commit, its history, and what has changed most.

asv's own pages move to asv.html. asv loads this module by `"plugins": [".benchmarks.publish.front_page"]` and calls it
at the end of every `asv publish`.
"""

from __future__ import annotations

import datetime
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from asv.console import log
from asv.publishing import OutputPublisher

from benchmarks.cells import Profile, chosen_profile
from benchmarks.publish.history_table import SUITE, WALL, results_of, samples_of, wall_ratios

FOLDER = Path(__file__).parent
METRICS = ("wall", "compute", "stall", "utilisation")
# Of all metrics, those for which larger is better; asv.conf.json names them, too.
LARGER_IS_BETTER = ("track_utilisation", "track_overlap")
# Changes that are listed.
CHANGES = 8
# asv's results have packages among their parameters. These are about the machine.
MACHINE = ("machine", "cpu", "num_cpu", "ram", "os", "arch")
WIDTH, HEIGHT, EDGE = 260, 84, 6


class FrontPage(OutputPublisher):  # type: ignore[misc]  # asv has no types
    """A publisher that puts a front page before asv's own pages."""

    order = 98

    @classmethod
    def publish(cls, conf: Any, *others: Any) -> None:
        """Write the page into `conf.html_dir`; asv calls it."""
        _, benchmarks, _, revisions = others
        html_dir, profile = Path(conf.html_dir), chosen_profile()
        history = read_history(Path(conf.results_dir), profile, revisions)
        write(html_dir, render(history, profile, dict(benchmarks), conf.project))
        if not history.commits:
            log.warning(f"The front page is empty: no commit was measured in profile {profile.name!r}")


@dataclass(frozen=True)
class Epoch:
    """An epoch of one strategy at one commit: seconds by metric, one value a round, or one in all without samples."""

    samples: Mapping[str, Sequence[float]]

    @property
    def wall(self) -> float:
        """Mean of the wall time."""
        return statistics.fmean(self.samples["wall"])

    @property
    def parts(self) -> dict[str, float]:
        """Means of compute alone, interference, stall, and the rest, in seconds; they add up to the wall time."""
        wall, compute, stall = (statistics.fmean(self.samples[each]) for each in ("wall", "compute", "stall"))
        used = self.samples.get("utilisation")
        alone = min(compute, wall * statistics.fmean(used)) if used else compute
        rest = max(0.0, wall - compute - stall)
        return {"compute": alone, "interference": compute - alone, "stall": stall, "rest": rest}


@dataclass(frozen=True)
class Commit:
    """A commit that was measured: its hash, when it was committed, its epochs by strategy, and asv's `Results`."""

    name: str
    date: datetime.datetime
    epochs: Mapping[str, Epoch]
    result: Any


@dataclass(frozen=True)
class History:
    """The commits that one machine measured, the oldest first, and other machines that are in the results."""

    commits: Sequence[Commit]
    other_machines: Sequence[str]


@dataclass(frozen=True)
class Change:
    """A metric for which two commits have different medians, `before` and `after`.

    It is separate if no sample of one commit lies between those of the other. `benchmark` and `parameters` find it on
    asv's pages.
    """

    benchmark: str
    parameters: str
    before: float
    after: float
    is_separate: bool
    unit: str

    @property
    def ratio(self) -> float:
        """The second over the first."""
        return self.after / self.before

    @property
    def is_worse(self) -> bool:
        """True if the second is larger, or smaller if larger is better."""
        return (self.ratio > 1) != self.benchmark.endswith(LARGER_IS_BETTER)


def read_history(results_dir: Path, profile: Profile, revisions: Mapping[str, int]) -> History:
    """Return the commits that were measured in a profile, on the machine that measured last."""
    found = [each for each in results_of(results_dir, profile) if each.commit_hash in revisions]
    if not found:
        return History([], [])
    machine = found[-1].params["machine"]
    newest = {each.commit_hash: each for each in found if each.params["machine"] == machine}
    commits = []
    for name, result in sorted(newest.items(), key=lambda each: revisions[each[0]]):
        epochs = _epochs(result)
        if epochs:
            date = datetime.datetime.fromtimestamp(result.date / 1000, datetime.UTC)
            commits.append(Commit(name, date, epochs, result))
    return History(commits, sorted({each.params["machine"] for each in found} - {machine}))


def _epochs(result: Any) -> dict[str, Epoch]:
    """Return the strategies of a result whose parts of the wall time were measured."""
    (names,) = result.get_result_params(WALL)
    # Older commits have no utilisation.
    metrics = [each for each in METRICS if f"{SUITE}.track_{each}" in result.get_all_result_keys()]
    found = {}
    for name in names:
        samples = {metric: values for metric in metrics if (values := _measured(result, metric, name))}
        if {"wall", "compute", "stall"} <= samples.keys():
            found[name.strip("'\"")] = Epoch(samples)
    return found


def _measured(result: Any, metric: str, name: str) -> list[float]:
    """Return the samples of a metric; without any its value, and nothing if it was not measured."""
    (value,) = result.get_result_value(f"{SUITE}.track_{metric}", [[name]])
    known = [] if value is None or math.isnan(value) else [float(value)]
    return samples_of(result, metric, name) or known


def _readable(name: str, value: str) -> str:
    """Return a fact about the machine for people; asv has the memory in bytes."""
    return f"{int(value) / 1e9:.1f} GB" if name == "ram" and value.isdecimal() else value


def find_changes(before: Any, after: Any, benchmarks: Mapping[str, Any]) -> list[Change]:
    """Return what changed most between two results, the clearest first."""
    changes = []
    for key in sorted(before.get_all_result_keys() & after.get_all_result_keys()):
        params = after.get_result_params(key)
        same = before.benchmark_version.get(key) == after.benchmark_version.get(key)
        if not same or params != before.get_result_params(key):
            continue
        columns = [
            each(key, params)
            for result in (before, after)
            for each in (result.get_result_value, result.get_result_samples)
        ]
        for chosen, old, old_samples, new, new_samples in zip(itertools.product(*params), *columns, strict=True):
            if not (_is_positive(old) and _is_positive(new)) or old == new:
                continue
            apart = _are_separate(old_samples or [old], new_samples or [new])
            unit = benchmarks.get(key, {}).get("unit", "")
            changes.append(Change(key, ", ".join(chosen), float(old), float(new), apart, unit))
    ranked = sorted(changes, key=lambda each: (not each.is_separate, -abs(math.log(each.ratio))))
    return ranked[:CHANGES]


def find_other_versions(commits: Sequence[Commit]) -> list[tuple[Commit, list[str]]]:
    """Return the commits that were measured with other versions than the one before, each with what differs."""
    found = []
    for before, after in itertools.pairwise(commits):
        old, new = (_versions(each.result.params) for each in (before, after))
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        if names:
            found.append((after, [f"{name} {old.get(name, 'none')} to {new.get(name, 'none')}" for name in names]))
    return found


def _versions(params: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(params.items()) if name not in MACHINE and value}


def _is_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _are_separate(one: Iterable[float], other: Iterable[float]) -> bool:
    one, other = sorted(one), sorted(other)
    return one[-1] < other[0] or other[-1] < one[0]


def render(history: History, profile: Profile, benchmarks: Mapping[str, Any], project: str) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("front_page.html")
    if not history.commits:
        return template.render(project=project, profile=profile, newest=None)
    newest, previous = history.commits[-1], history.commits[-2] if len(history.commits) > 1 else None
    ratios = wall_ratios({name: epoch.samples["wall"] for name, epoch in newest.epochs.items()})
    longest = max(each.wall for each in newest.epochs.values())
    params = newest.result.params
    return template.render(
        project=project,
        profile=profile,
        newest=newest,
        previous=previous,
        rows=[
            {
                "name": name,
                "wall": epoch.wall,
                "parts": {part: seconds / longest for part, seconds in epoch.parts.items()},
                "seconds": epoch.parts,
                "ratio": ratios.get(name),
            }
            for name, epoch in newest.epochs.items()
        ],
        rounds=len(next(iter(newest.epochs.values())).samples["wall"]),
        curves=[_curve(history.commits, name) for name in newest.epochs],
        commits=len(history.commits),
        changes=[] if previous is None else find_changes(previous.result, newest.result, benchmarks),
        machine={name: _readable(name, params[name]) for name in MACHINE if params.get(name)},
        versions=_versions(params),
        other_versions=find_other_versions(history.commits),
        other_machines=history.other_machines,
        width=WIDTH,
        height=HEIGHT,
    )


def _curve(commits: Sequence[Commit], name: str) -> dict[str, Any]:
    """Return the wall time of a strategy over the commits, as points of a drawing of `WIDTH` by `HEIGHT`."""
    walls = [(number, each.epochs[name].wall) for number, each in enumerate(commits) if name in each.epochs]
    top = max(wall for _, wall in walls) * 1.15
    step = (WIDTH - 2 * EDGE) / max(1, len(commits) - 1)
    points = [
        {
            "x": round(WIDTH / 2 if len(commits) == 1 else EDGE + number * step, 1),
            "y": round(HEIGHT - EDGE - wall / top * (HEIGHT - 2 * EDGE), 1),
            "label": f"{commits[number].name[:8]}, {commits[number].date:%Y-%m-%d}: {1e3 * wall:,.1f} ms",
        }
        for number, wall in walls
    ]
    return {"name": name, "points": points, "first": walls[0][1], "last": walls[-1][1]}


def write(html_dir: Path, page: str) -> None:
    """Write the front page; asv's own becomes asv.html, in which a box without a curve says why."""
    own = html_dir / "index.html"
    text = own.read_text(encoding="utf-8")
    (html_dir / "asv.html").write_text(
        text.replace("</head>", '  <script src="boxes.js"></script>\n  </head>'), encoding="utf-8"
    )
    (html_dir / "boxes.js").write_text((FOLDER / "boxes.js").read_text(encoding="utf-8"), encoding="utf-8")
    own.write_text(page, encoding="utf-8")
