"""The page of tuning: complete, self-contained, readable on any screen, and true to the result."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from PIL import Image

from etl.comparison.tuning.chart import cost_chart
from etl.comparison.tuning.page import render_tuning_page
from etl.comparison.tuning.results import TunedStrategy, Tuning
from tests import tuning_results
from tests.browser import find_chromium, render, serve
from tests.comparison_reports import HOSTILE
from tests.pages import assert_fit_on_a_phone, assert_self_contained, words_of
from tests.tuning_results import TUNINGS, configuration, strategy

NEEDS_CHROMIUM = pytest.mark.skipif(find_chromium() is None, reason="no Chromium")


@pytest.mark.parametrize("make", TUNINGS.values(), ids=list(TUNINGS))
def test_every_result_gives_a_complete_page_that_needs_no_network(make: Callable[[], Tuning]) -> None:
    tuning = make()
    html = render_tuning_page(tuning)
    assert_self_contained(html)
    words = words_of(html)
    assert not {"None", "nan", "True", "False"} & set(words.split())
    shown = [each.advice() for each in tuning.strategies] + [tuning.conclusion()]
    assert all(" ".join(each.replace("\udcff", "\\udcff").split()) in words for each in shown)
    links = re.findall(r'href="#([^"]*)"', html)
    assert all(html.count(f'id="{link}"') == 1 for link in links)


def test_texts_from_outside_are_shown_as_text() -> None:
    html = render_tuning_page(tuning_results.hostile())
    assert "<script" not in html
    shown = HOSTILE.replace("\udcff", "\\udcff")
    assert f"<h1>{shown}</h1>" in unescape(html)
    assert words_of(html).count(shown) > 60


def rows(html: str, strategy_number: int) -> list[list[str]]:
    """Return the cells of the table of all configurations of a strategy."""
    section = html.partition(f'<section id="strategy-{strategy_number}">')[2].partition("</section>")[0]
    found = re.findall(r"<tr.*?</tr>", section, flags=re.S)
    return [[words_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, flags=re.S)] for row in found]


def test_the_table_has_every_configuration() -> None:
    tuning = tuning_results.photographs()
    html = render_tuning_page(tuning)
    for number, each in enumerate(tuning.strategies, 1):
        assert len(rows(html, number)) == 1 + len(each.configurations)
    heading, *found = rows(html, 3)
    assert heading == ["#", "settings", "epoch", "ratio", "prepared in", "disk", "memory", "processes", "front"]
    dash = "\N{EN DASH}"
    dropped = "stage=normalise dropped: it takes 1,204 MB on disk, above --max-disk"
    assert found[0] == ["1", dropped, "3.20 s", dash, "6.20 s", "1.20 GB", "400 MB", "2", ""]
    ratio = "0.80 (0.77 to 0.84)"
    assert found[1] == ["2 chosen", "stage=resize", "3.31 s", ratio, "3.40 s", "301 MB", "400 MB", "11", "yes"]
    assert found[4] == ["5 given", "as given", "4.14 s", "1", "310 ms", "78.3 MB", "400 MB", "2", "yes"]
    assert "Limits: --max-disk 500 MB." in words_of(html)


def kinds(strategy: TunedStrategy) -> list[str]:
    """Return the classes of the points of a chart, in the order in which they are drawn."""
    chart = cost_chart(strategy)
    assert chart is not None
    return re.findall(r'<path class="point (\w+)"', chart.drawing)


def test_the_chart_has_a_point_for_each_configuration_and_names_those_that_matter() -> None:
    loader = tuning_results.my_loader()
    chart = cost_chart(loader)
    assert chart is not None
    assert chart.cost == "peak memory"
    assert len(kinds(loader)) == len(loader.configurations)
    assert kinds(loader).count("front") == sum(each.is_on_front for each in loader.configurations)
    names = re.findall(r'<text class="point-name"[^>]*>([^<]+)', chart.drawing)
    assert names == ["1", "2 chosen", "4", "18 given"]
    presaved = tuning_results.presaved()
    stored = cost_chart(presaved)
    assert stored is not None
    assert stored.cost == "disk space"
    assert kinds(presaved).count("dropped") == 2


def test_without_a_front_the_given_and_the_chosen_one_are_named() -> None:
    loader = tuning_results.without_front(tuning_results.my_loader())
    assert set(kinds(loader)) == {"tried"}
    chart = cost_chart(loader)
    assert chart is not None
    assert re.findall(r'<text class="point-name"[^>]*>([^<]+)', chart.drawing) == ["2 chosen", "18 given"]
    assert "front-line" not in chart.drawing


def test_shapes_tell_the_chosen_the_given_and_the_dropped_without_colours() -> None:
    presaved = cost_chart(tuning_results.presaved())
    assert presaved is not None
    paths = re.findall(r'<path class="point \w+" d="([^"]+)">', presaved.drawing)
    assert len(paths) == 5
    assert len(set(paths)) == 4


def test_there_is_no_chart_of_one_configuration_or_of_equal_costs() -> None:
    assert cost_chart(strategy("one", [configuration({}, 2.0)], {})) is None
    alike = [configuration({"threads": 2}, 2.0, memory=1.01e9), configuration({}, 3.0, memory=1e9)]
    assert cost_chart(strategy("alike", alike, {})) is None


def test_a_wide_range_has_a_logarithmic_axis_with_units_that_suit_each_mark() -> None:
    chart = cost_chart(tuning_results.many().strategies[0])
    assert chart is not None
    assert "disk space, logarithmic" in chart.drawing
    marks = re.findall(r'<text class="mark"[^>]*>([^<]+)', chart.drawing)
    assert {"10 ms", "1 s"} <= set(marks)
    assert not any("e-" in mark for mark in marks)


def test_an_early_stop_and_failed_strategies_have_a_banner() -> None:
    assert 'class="banner"' not in render_tuning_page(tuning_results.photographs())
    assert "Stopped early." in words_of(render_tuning_page(tuning_results.cached()))
    failed = words_of(render_tuning_page(tuning_results.all_failed()))
    assert "raw could not be tuned: ValueError: it has no settings" in failed
    some = replace(tuning_results.photographs(), failed={"mine": "no such module"})
    assert "mine could not be tuned: no such module" in words_of(render_tuning_page(some))


@NEEDS_CHROMIUM
def test_a_browser_shows_the_page_without_errors_or_requests(tmp_path: Path) -> None:
    (tmp_path / "tuning.html").write_text(render_tuning_page(tuning_results.photographs()), "utf-8")
    requested: list[str] = []
    with serve(tmp_path, requested) as url:
        for dark, corner in ((False, (0xF3, 0xF4, 0xF6)), (True, (0x10, 0x13, 0x17))):
            picture = tmp_path / f"{dark}.png"
            rendered = render(f"{url}/tuning.html", picture, settle_seconds=1, dark=dark)
            assert rendered.console == []
            with Image.open(picture) as image:
                assert image.convert("RGB").getpixel((3, 3)) == corner
    assert requested == ["/tuning.html"] * 2


@NEEDS_CHROMIUM
def test_no_page_scrolls_sideways_or_clips_a_chart_on_a_phone(tmp_path: Path) -> None:
    assert_fit_on_a_phone({name: render_tuning_page(make()) for name, make in TUNINGS.items()}, tmp_path)
