"""The page of tuning: complete, self-contained, readable on any screen, and true to the result."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from PIL import Image

from etl.comparison.tuning.tuning_page import render_tuning_page
from etl.comparison.tuning.tuning_results import Tuning
from tests import tuning_results
from tests.browser import find_chromium, render, serve
from tests.comparison_reports import HOSTILE
from tests.pages import assert_fit_on_a_phone, assert_self_contained, words_of
from tests.tuning_results import TUNINGS

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
