"""asv's pages show every suite of the axes: in the grid, as graphs with their parameters, and among the regressions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import browser
import pytest
from PIL import Image
from scratch import Scratch, make_scratch

from benchmarks.axes import AXES
from benchmarks.profile import AXES_VARIABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.find_chromium() is None, reason="no Chromium to render the pages with"),
]

# The figure of each suite that is looked at, and the axis that is its parameter.
FIGURES = {
    "end_to_end.PrefetchSize.track_stall": "prefetch_size",
    "end_to_end.Workers.track_wall": "workers",
    "end_to_end.PresaveFormat.track_etl": "presave_format",
    "end_to_end.PresaveStage.track_peak_memory": "presave_stage",
    "end_to_end.PresavingByFormat.track_store_size": "presave_format",
    "end_to_end.PresavingByStage.track_write_time": "presave_stage",
}
SUITES = "|".join(name.split(".")[1] for name in FIGURES)
COMMITS, SLOWER_FROM, FACTOR = 10, 5, 2.0
DAY_MILLISECONDS = 24 * 3600 * 1000
# asv's colours of the first series of a graph.
COLOURS = [(0x24, 0x7A, 0xAD), (0xE2, 0x4A, 0x33), (0x98, 0x8E, 0xD5)]


@dataclass(frozen=True)
class Pages:
    """Published pages at `url`, and what asv measured of the first commit, by benchmark."""

    url: str
    values: dict[str, list[float | None]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A history of ten commits: the first is measured, the others have its figures, twice as high from the sixth on."""
    scratch = make_scratch(tmp_path_factory.mktemp("pages"))
    first = scratch.commit("Measured")
    assert scratch.asv("machine", "--yes").returncode == 0
    measured = scratch.run(
        "asv",
        *("run", "--record-samples", "--bench", SUITES, f"{first}^!"),
        **{"FAIR_ETL_ROUNDS": "1", AXES_VARIABLE: ",".join(dict.fromkeys(FIGURES.values()))},
    )
    assert measured.returncode == 0, measured.stdout
    (file,) = scratch.folder.glob(f".asv/results/*/{first[:8]}-*.json")
    result = json.loads(file.read_text())
    values = {name: result["results"][name][0] for name in FIGURES}
    for number in range(1, COMMITS):
        add_commit(scratch, file, number)
    published = scratch.asv("publish")
    assert published.returncode == 0, published.stdout
    with browser.serve(scratch.folder / ".asv/html") as url:
        yield Pages(url, values)


def add_commit(scratch: Scratch, file: Path, number: int) -> None:
    """A commit that changes no code, with the figures of `file` as they would be had loading become slower."""
    first = file.name[:8]
    (scratch.folder / "CHANGELOG.md").write_text(f"Change {number}.\n")
    commit = scratch.commit(f"Change {number}")
    result = json.loads(file.read_text())
    result["commit_hash"] = commit
    result["date"] += number * DAY_MILLISECONDS
    # A step alone has no noise, which asv's detector needs to tell a step from.
    factor = (FACTOR if number >= SLOWER_FROM else 1.0) * (1 + 0.01 * (number % 3))
    for columns in result["results"].values():
        columns[0] = [None if value is None else value * factor for value in columns[0]]
    (file.parent / file.name.replace(first, commit[:8])).write_text(json.dumps(result))


@pytest.mark.parametrize("figure", FIGURES)
def test_every_value_of_an_axis_is_measured(pages: Pages, figure: str) -> None:
    values = pages.values[figure]
    assert len(values) == len(AXES[FIGURES[figure]].values)
    assert all(value is not None and value >= 0 for value in values)


def test_the_grid_shows_every_suite(pages: Pages, tmp_path: Path) -> None:
    grid = browser.render(pages.url, tmp_path / "grid.png")
    assert grid.console == []
    for figure in FIGURES:
        assert f'href="#{figure}"' in grid.dom
        assert f'id="summarygrid-{figure}"' in grid.dom


@pytest.mark.parametrize(("figure", "axis"), FIGURES.items())
def test_a_graph_has_a_button_for_every_value_and_a_line_for_each(
    pages: Pages, figure: str, axis: str, tmp_path: Path
) -> None:
    graph = browser.render(f"{pages.url}/#{figure}", tmp_path / "graph.png")
    assert graph.console == []
    for value in AXES[axis].values:
        assert f'role="button">{value}</a>' in graph.dom, value
    assert "flot-text" in graph.dom
    drawn = Image.open(tmp_path / "graph.png").convert("RGB").getcolors(1 << 24)
    assert drawn is not None
    colours = {colour for _, colour in drawn}
    assert set(COLOURS) <= colours


def test_the_regressions_page_shows_the_step_of_every_suite(pages: Pages) -> None:
    regressions = browser.render(f"{pages.url}/#regressions")
    assert regressions.console == []
    for figure in FIGURES:
        assert f">{figure}(" in regressions.dom
