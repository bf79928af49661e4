"""asv over real commits: a history with a step, and a comparison that finds it.

asv may report a difference between two commits of equal code; compare_commits promises not to.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.asv_history import FACTOR, History, changes

pytestmark = pytest.mark.alone

METRICS = ("wall", "etl", "compute", "stall", "peak_memory")


@pytest.fixture(scope="module")
def compared(history: History) -> subprocess.CompletedProcess[str]:
    """Return asv's comparison of the slower commit with the one before it."""
    return history.compare(history.same, history.slow, reports="Strategy.track_etl('raw')")


@pytest.fixture(scope="module")
def pages(history: History, compared: subprocess.CompletedProcess[str]) -> Path:
    """Return the folder of the published pages, with the metrics of both commits."""
    published = history.scratch.asv("publish")
    assert published.returncode == 0, published.stdout
    return history.scratch.folder / ".asv/html"


def read_column(history: History, commit: str, metric: str, column: str = "result") -> dict[str, Any]:
    """Return what asv recorded of each strategy for `commit`."""
    (file,) = history.scratch.folder.glob(f".asv/results/*/{commit[:8]}-*.json")
    content = json.loads(file.read_text())
    columns = dict(
        zip(content["result_columns"], content["results"][f"end_to_end.Strategy.track_{metric}"], strict=False)
    )
    return dict(zip((name.strip("'") for name in columns["params"][0]), columns[column], strict=True))


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_of_both_commits_is_recorded(history: History, metric: str) -> None:
    for commit in (history.same, history.slow):
        values = read_column(history, commit, metric)
        assert values.keys() == {"raw", "presaved"}
        assert all(value > 0 for value in values.values())


def test_samples_are_kept_with_an_interval_around_their_median(history: History) -> None:
    (file,) = history.scratch.folder.glob(f".asv/results/*/{history.slow[:8]}-*.json")
    content = json.loads(file.read_text())
    columns = dict(zip(content["result_columns"], content["results"]["end_to_end.Strategy.track_wall"], strict=False))
    for value, low, high, samples in zip(
        columns["result"], columns["stats_q_25"], columns["stats_q_75"], columns["samples"], strict=True
    ):
        assert len(samples) == 3  # one for each round of profile `check`
        assert min(samples) <= low <= value <= high <= max(samples)


def test_continuous_reports_raw_decoding_and_exits_1(compared: subprocess.CompletedProcess[str]) -> None:
    assert compared.returncode == 1, compared.stdout
    assert any("Strategy.track_etl('raw')" in line for line in changes(compared)), compared.stdout


def test_compare_shows_the_ratio(history: History, compared: subprocess.CompletedProcess[str]) -> None:
    shown = history.scratch.asv("compare", "--factor", str(FACTOR), history.same, history.slow)
    assert shown.returncode == 0, shown.stdout
    (row,) = (line for line in shown.stdout.splitlines() if "Strategy.track_etl('raw')" in line)
    before, after = (read_column(history, commit, "etl")["raw"] for commit in (history.same, history.slow))
    assert f"{after / before:.2f}" in row


def test_the_history_shows_the_step(history: History, pages: Path) -> None:
    before, after = (read_column(history, commit, "etl") for commit in (history.same, history.slow))
    assert after["raw"] > FACTOR * before["raw"]
    (graph,) = (path for path in pages.glob("graphs/arch*/**/end_to_end.Strategy.track_etl.json"))
    points = json.loads(graph.read_text())
    assert [values for _, values in points] == [pytest.approx(list(each.values())) for each in (before, after)]


def test_the_table_shows_every_strategy_their_ratio_and_where_the_pages_are(history: History) -> None:
    shown = history.scratch.run("benchmarks.publish.history_table", history.slow)
    assert shown.returncode == 0, shown.stdout
    rows = [line.split("│") for line in shown.stdout.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["raw", "presaved"]
    wall = {name: float(row[4]) / 1e3 for name, row in zip(("raw", "presaved"), rows, strict=True)}
    samples = read_column(history, history.slow, "wall", "samples")
    assert wall == pytest.approx({name: statistics.fmean(each) for name, each in samples.items()}, abs=1e-4)
    assert "wall time presaved / raw" in shown.stdout
    assert str(history.scratch.folder / ".asv/html") in shown.stdout


def test_the_table_says_what_presaving_cost_if_that_was_measured(history: History) -> None:
    shown = history.scratch.run("benchmarks.publish.history_table", history.same)
    assert shown.returncode == 0, shown.stdout
    assert "presaving took" in shown.stdout


def test_the_table_of_a_commit_that_was_not_measured_says_what_to_run(history: History) -> None:
    (history.scratch.folder / "CHANGELOG.md").write_text("A change that was not measured.\n")
    unmeasured = history.scratch.commit("Not measured")
    shown = history.scratch.run("benchmarks.publish.history_table", unmeasured)
    assert shown.returncode == 1
    assert f"asv run --record-samples {unmeasured[:8]}^!" in shown.stdout
