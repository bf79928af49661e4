"""asv's pages show every suite of the axes: in the grid, as graphs with their parameters, and among the regressions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.cells import AXES
from tests import browser
from tests.asv_history import BENCHMARKS, History
from tests.scratch import Scratch

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(browser.find_chromium() is None, reason="no Chromium to render the pages with"),
]

# The metric of each suite that is checked, and the axis that is its parameter.
METRICS = {
    "end_to_end.PrefetchSize.track_stall": "prefetch_size",
    "end_to_end.Workers.track_wall": "workers",
    "end_to_end.PresaveFormat.track_etl": "presave_format",
    "end_to_end.PresaveStage.track_peak_memory": "presave_stage",
    "end_to_end.PresavingByFormat.track_store_size": "presave_format",
    "end_to_end.PresavingByStage.track_write_time": "presave_stage",
}
COMMITS, HIGHER_FROM, FACTOR = 10, 5, 2.0
DAY_MILLISECONDS = 24 * 3600 * 1000
# asv's colours of the first series of a graph.
COLOURS = [(0x24, 0x7A, 0xAD), (0xE2, 0x4A, 0x33), (0x98, 0x8E, 0xD5)]


@dataclass(frozen=True)
class Pages:
    """Published pages at `url`, and what asv had measured of the first commit, by benchmark."""

    url: str
    values: dict[str, list[float | None]]


@pytest.fixture(scope="module")
def pages(history: History, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Publish ten commits: the first is measured, the others have its metrics, twice as high from the sixth on."""
    folder = tmp_path_factory.mktemp("pages")
    scratch = Scratch(Path(shutil.copytree(history.scratch.folder, folder / "scratch")), history.scratch.data)
    shutil.rmtree(scratch.folder / ".asv/html", ignore_errors=True)
    (scratch.folder / BENCHMARKS).write_text(history.benchmarks)
    (measured,) = scratch.folder.glob(f".asv/results/*/{history.same[:8]}-*.json")
    for other in measured.parent.glob("*-*.json"):
        if other != measured:
            other.unlink()
    result = json.loads(measured.read_text())
    for number in range(1, COMMITS):
        add_commit(scratch, measured, number)
    published = scratch.asv("publish")
    assert published.returncode == 0, published.stdout
    with browser.serve(scratch.folder / ".asv/html") as url:
        yield Pages(url, {name: result["results"][name][0] for name in METRICS})


def add_commit(scratch: Scratch, measured: Path, number: int) -> None:
    """Add a commit that changes no code, with the metrics of `measured`; from the sixth commit on they are higher."""
    (scratch.folder / "CHANGELOG.md").write_text(f"Change {number}.\n")
    commit = scratch.commit(f"Change {number}")
    result = json.loads(measured.read_text())
    result["commit_hash"] = commit
    result["date"] += number * DAY_MILLISECONDS
    # With a little noise, which asv's detector needs to recognise a step.
    factor = (FACTOR if number >= HIGHER_FROM else 1.0) * (1 + 0.01 * (number % 3))
    for columns in result["results"].values():
        columns[0] = [None if value is None else value * factor for value in columns[0]]
    (measured.parent / measured.name.replace(measured.name[:8], commit[:8])).write_text(json.dumps(result))


def colours_of(screenshot: Path) -> set[object]:
    """Return the colours of all pixels: red, green and blue."""
    with Image.open(screenshot) as image:
        return {colour for _, colour in image.convert("RGB").getcolors(image.width * image.height) or []}


@pytest.mark.parametrize("metric", METRICS)
def test_every_value_of_an_axis_is_measured(pages: Pages, metric: str) -> None:
    values = pages.values[metric]
    assert len(values) == len(AXES[METRICS[metric]].values)
    assert all(value is not None and value >= 0 for value in values)


def test_the_grid_shows_every_suite(pages: Pages, tmp_path: Path) -> None:
    grid = browser.render(f"{pages.url}/asv.html", tmp_path / "grid.png")
    assert grid.console == []
    for metric in METRICS:
        assert f'href="#{metric}"' in grid.dom
        assert f'id="summarygrid-{metric}"' in grid.dom


@pytest.mark.parametrize(("metric", "axis"), METRICS.items())
def test_a_graph_has_a_button_for_every_value_and_a_line_for_each(
    pages: Pages, metric: str, axis: str, tmp_path: Path
) -> None:
    graph = browser.render(f"{pages.url}/#{metric}", tmp_path / "graph.png")
    assert graph.console == []
    for value in AXES[axis].values:
        assert f'role="button">{value}</a>' in graph.dom, value
    assert "flot-text" in graph.dom
    assert set(COLOURS) <= colours_of(tmp_path / "graph.png")


def test_the_regressions_page_shows_the_step_of_every_suite(pages: Pages) -> None:
    regressions = browser.render(f"{pages.url}/#regressions")
    assert regressions.console == []
    for metric in METRICS:
        assert f">{metric}(" in regressions.dom


def test_the_strategies_are_a_bar_chart(pages: Pages, tmp_path: Path) -> None:
    chart = browser.render(f"{pages.url}/#end_to_end.Strategy.track_wall?x-axis=strategy", tmp_path / "chart.png")
    assert chart.console == []
    assert "flot-text" in chart.dom
    assert "presaved" in chart.dom
    assert COLOURS[0] in colours_of(tmp_path / "chart.png")
