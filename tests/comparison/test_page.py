"""Pages of comparisons and tuning: complete, self-contained, readable on any screen, and true to their metrics."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etl.comparison.judge.report import ProfileResult
from etl.comparison.show.charts import RatioAxis, epoch_bars, linear_marks, ratio_intervals
from etl.comparison.show.page import render_page
from etl.comparison.show.report import Report
from etl.comparison.tuning.tuning_page import render_tuning_page
from etl.comparison.tuning.tuning_results import Tuning
from etl.measuring.statistics import Interval
from etl.units import digits, nbytes, percent, ratio, seconds
from tests import comparison_reports, tuning_results
from tests.browser import find_chromium, render, serve
from tests.comparison_reports import HOSTILE, REPORTS, strategy
from tests.pages import assert_fit_on_a_phone, assert_self_contained, words_of
from tests.tuning_results import TUNINGS

NEEDS_CHROMIUM = pytest.mark.skipif(find_chromium() is None, reason="no Chromium")
ROOT = Path(__file__).parents[2]
STYLES = ROOT / "etl/comparison/show/page.css"


@pytest.mark.parametrize("make", REPORTS.values(), ids=list(REPORTS))
def test_every_report_gives_a_page_whose_tags_are_closed_and_whose_charts_have_names(
    make: Callable[[], Report],
) -> None:
    html = render_page(make())
    assert_self_contained(html)
    assert 'role="img"' in html
    assert "None" not in words_of(html)
    assert "nan" not in words_of(html).split()


@pytest.mark.parametrize("make", TUNINGS.values(), ids=list(TUNINGS))
def test_every_result_of_tuning_gives_a_complete_page_that_needs_no_network(make: Callable[[], Tuning]) -> None:
    tuning = make()
    html = render_tuning_page(tuning)
    assert_self_contained(html)
    words = words_of(html)
    assert not {"None", "nan", "True", "False"} & set(words.split())
    shown = [each.advice() for each in tuning.strategies] + [tuning.conclusion()]
    assert all(" ".join(each.replace("\udcff", "\\udcff").split()) in words for each in shown)


@pytest.mark.parametrize(
    "html",
    [render_page(comparison_reports.hostile()), render_tuning_page(tuning_results.hostile())],
    ids=["compare", "tune"],
)
def test_texts_from_outside_are_shown_as_text(html: str) -> None:
    assert "<script" not in html
    shown = HOSTILE.replace("\udcff", "\\udcff")
    assert f"<h1>{shown}</h1>" in unescape(html)
    assert words_of(html).count(shown) > 60


@pytest.mark.parametrize("make", [comparison_reports.photographs, comparison_reports.faster_beside_loading])
def test_a_bar_ends_at_the_wall_time_even_if_interference_is_negative(make: Callable[[], Report]) -> None:
    report = make()
    longest = max(each.parts.wall_seconds for each in report.strategies)
    for result, row in zip(report.strategies, epoch_bars(report).rows, strict=True):
        drawn = sum(each.width for each in row.bars)
        assert drawn == pytest.approx(result.parts.wall_seconds / longest * 100, abs=0.01)


def test_a_bar_of_the_table_ends_at_the_wall_time_even_if_interference_is_negative() -> None:
    result = strategy("raw", 3.0, 4.0, -2.0, 0.9988, etl=1.0)
    table = str(replace(comparison_reports.one_strategy(), strategies=[result]))
    assert sum("██" in line for line in table.splitlines()) == 1  # a longer bar would wrap
    assert "░" in next(line for line in table.splitlines() if "██" in line)


def test_if_every_strategy_needs_a_store_none_pays_off_or_fails_to() -> None:
    report = comparison_reports.photographs()
    html = render_page(replace(report, strategies=report.strategies[2:], timelines=[]))
    assert "never" not in words_of(html)


def test_a_page_without_stages_and_profile_says_what_they_take_and_shows_no_empty_table() -> None:
    usual = replace(comparison_reports.photographs(), stages=[], profile=ProfileResult([], {}, [], 0.0))
    html = render_page(usual)
    assert_self_contained(html)
    words = words_of(html)
    assert "No stage was measured: that takes --stages , and a strategy that reads a store." in words
    assert "not profiled: that takes --stages or --what-if ." in words
    assert "memory per second" not in words


def test_negative_interference_is_in_the_table_but_not_drawn() -> None:
    report = comparison_reports.faster_beside_loading()
    assert "below 0 is noise 0.020 −0.050" in words_of(render_page(report))  # noqa: RUF001
    assert [each.kind for each in epoch_bars(report).rows[1].bars] == ["compute", "stall", "rest"]


def test_a_disqualified_strategy_alone_is_striped() -> None:
    *others, last = epoch_bars(comparison_reports.everything()).rows
    assert last.warning.startswith("disqualified: samples: it does not shuffle")
    assert not any(row.warning for row in others)
    assert render_page(comparison_reports.everything()).count('class="plot disqualified"') == 1


def test_a_report_without_anything_unusual_has_no_banner_and_no_columns_for_it() -> None:
    report = comparison_reports.photographs()
    assert 'class="banner"' not in render_page(report)
    assert 'class="banner"' not in render_tuning_page(tuning_results.photographs())
    for shown in (str(report), words_of(render_page(report))):
        assert not [each for each in ("host wait", "close", "device memory", "device MB", "Ranks") if each in shown]


def test_only_a_difference_that_was_shown_is_drawn_in_colour() -> None:
    report = comparison_reports.photographs()
    reference, faster, unclear, broken = report.strategies
    unclear = replace(unclear, ratio=Interval(0.98, 0.95, 1.02, 9))
    checks = [replace(report.checks[0], held=False, broken_by={broken.name: "other pixels"})]
    report = replace(report, strategies=[reference, faster, unclear, broken], checks=checks)
    chart = ratio_intervals(report)
    assert chart is not None
    assert [row.dot and row.dot.kind for row in chart.rows] == ["reference", "shown", "unclear", "disqualified"]


def test_too_few_rounds_give_a_dot_without_a_whisker_and_one_strategy_no_chart() -> None:
    report = comparison_reports.photographs()
    few = [replace(each, ratio=each.ratio and replace(each.ratio, low=None, high=None)) for each in report.strategies]
    chart = ratio_intervals(replace(report, strategies=few))
    assert chart is not None
    assert all(row.dot is not None and row.dot.low is None for row in chart.rows)
    assert [row.summary for row in chart.rows][1] == "0.70, too few rounds"
    assert ratio_intervals(comparison_reports.one_strategy()) is None


@pytest.mark.parametrize("high", [1.003, 1.02, 1.2, 2.0, 9.0, 70.0, 4000.0, 3e9])
@pytest.mark.parametrize("turned", [False, True])
def test_a_ratio_axis_marks_one_and_its_marks_are_apart(high: float, turned: bool) -> None:
    axis = RatioAxis.around([1 / high if turned else high])
    marks = axis.marks()
    assert any(mark == pytest.approx(1) for mark in marks)
    places = [axis.position(mark) for mark in marks]
    assert min(np.diff(places), default=100) > 13
    assert 0 <= min(places) <= max(places) <= 100


@pytest.mark.parametrize("end", [3e-5, 0.07, 1.0, 9.99, 10.0, 6310.0])
def test_a_linear_axis_has_two_to_five_marks_from_zero_within_its_length(end: float) -> None:
    marks = linear_marks(end)
    assert 2 <= len(marks) <= 5
    assert marks[0] == 0
    assert 0.5 * end <= marks[-1] <= end * 1.001


def test_quantities_have_three_digits_and_the_unit_that_suits() -> None:
    assert [seconds(each) for each in (0.0, 4.56e-5, 0.01234, 1.0, 63.4, 7500.0)] == [
        "0 s",
        "45.6 µs",
        "12.3 ms",
        "1.00 s",
        "63.4 s",
        "2.08 h",
    ]
    assert [nbytes(each) for each in (0, 999, 39_150, 301_100_000, 1.2e12)] == [
        "0 B",
        "999 B",
        "39.1 kB",
        "301 MB",
        "1.20 TB",
    ]
    assert [digits(each) for each in (12579.4, 9.999, 0.0012, 0.00004, -0.05, None)] == [
        "12,579",
        "10.0",
        "0.001",
        "0.00004",
        "−0.050",  # noqa: RUF001
        "–",  # noqa: RUF001
    ]
    assert [percent(each) for each in (0.034, -0.12, 0.0004)] == ["3.4%", "−12%", "0.04%"]  # noqa: RUF001
    assert [ratio(each) for each in (0.52, 1.0, 0.0123, 12.3)] == ["0.52", "1.00", "0.012", "12.30"]


def test_text_has_a_contrast_of_at_least_four_and_a_half_in_light_dark_and_print() -> None:
    blocks = re.findall(r":root \{(.*?)\}", STYLES.read_text("utf-8"), flags=re.S)
    light, dark, paper = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks)
    pairs = [(ink, ground) for ink in ("ink", "muted", "link") for ground in ("page", "card")]
    pairs += [(ink, "card") for ink in ("held", "broken", "unknown")] + [("banner-ink", "banner")]
    pairs += [("on-compute", "compute")]
    pairs += [("on-light", ground) for ground in ("interference", "stall", "rest")]
    for colours in (light, light | dark, light | paper):
        for ink, ground in pairs:
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground, colours[ink], colours[ground])
        for shape in ("compute", "interference", "stall", "rest", "accent", "unclear"):
            assert contrast(colours[shape], colours["card"]) >= 3, (shape, colours[shape])


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2.1 defines it."""
    lighter, darker = sorted(map(_luminance, (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_an_installed_package_holds_the_template_its_style_and_the_schema() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["etl"]
    files = [path for path in (ROOT / "etl/comparison").rglob("*") if path.is_file()]
    beside_code = {str(each.relative_to(ROOT / "etl")) for each in files if each.suffix not in {".py", ".pyc"}}
    names = ("show/document.html", "show/macros.html", "show/page.html", "show/page.css", "show/tuning.html")
    pages = {f"comparison/{name}" for name in names}
    assert beside_code == pages | {"comparison/judge/report.schema.json", "comparison/tuning/tuning.schema.json"}
    assert beside_code <= set(packaged)


@NEEDS_CHROMIUM
def test_a_browser_shows_the_page_without_errors_or_requests_in_the_colours_that_the_user_prefers(
    tmp_path: Path,
) -> None:
    (tmp_path / "report.html").write_text(render_page(comparison_reports.photographs()), "utf-8")
    corners = {}
    requested: list[str] = []
    with serve(tmp_path, requested) as url:
        for dark in (False, True):
            picture = tmp_path / f"{dark}.png"
            rendered = render(f"{url}/report.html", picture, dark=dark)
            assert rendered.console == []
            with Image.open(picture) as image:
                corners[dark] = image.convert("RGB").getpixel((3, 3))
    assert requested == ["/report.html"] * 2
    assert corners == {False: (0xF3, 0xF4, 0xF6), True: (0x10, 0x13, 0x17)}


@NEEDS_CHROMIUM
def test_no_page_scrolls_sideways_or_clips_a_chart_on_a_phone(tmp_path: Path) -> None:
    pages = {name: render_page(make()) for name, make in REPORTS.items()}
    tunings = {f"tune_{name}": render_tuning_page(make()) for name, make in TUNINGS.items()}
    assert_fit_on_a_phone({**pages, **tunings}, tmp_path)


def test_an_epoch_that_is_shorter_than_compute_alone_loses_nothing() -> None:
    report = comparison_reports.faster_beside_loading()
    raw, saved = report.strategies
    faster = replace(saved, parts=replace(saved.parts, compute_alone_seconds=1.25 * saved.parts.wall_seconds))
    assert "presaved loses 0%\n" in str(report)  # not -0%
    assert "presaved loses nothing: its epochs take 20% less than compute alone\n" in str(
        replace(report, strategies=[raw, faster])
    )


def test_if_storage_is_unknown_its_row_is_empty_and_the_line_names_both() -> None:
    report = comparison_reports.one_strategy()
    losses = replace(report.strategies[0].losses, storage_seconds=None, storage_method=None)
    unknown = replace(report, strategies=[replace(report.strategies[0], losses=losses)])
    page = words_of(render_page(unknown))
    assert "data were waited for – CPU all other stalls: decoding and the like took too long – transfer" in page  # noqa: RUF001
    assert "storage or CPU " in str(unknown)
