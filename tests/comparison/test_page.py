"""The page of a comparison: complete, self-contained, readable on any screen, and true to the report's metrics."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from etl.comparison.show.charts import RatioAxis, epoch_bars, linear_marks, ratio_intervals
from etl.comparison.show.page import render_page
from etl.comparison.show.report import Report
from etl.comparison.show.report_table import show_report
from etl.measuring.statistics import Interval
from etl.units import digits, nbytes, percent, ratio, seconds
from tests import comparison_reports
from tests.browser import find_chromium, render, serve
from tests.comparison_reports import HOSTILE, REPORTS
from tests.pages import assert_fit_on_a_phone, assert_self_contained, words_of

NEEDS_CHROMIUM = pytest.mark.skipif(find_chromium() is None, reason="no Chromium")
ROOT = Path(__file__).parents[2]
STYLES = ROOT / "etl/comparison/show/page.css"


def row_of(html: str, name: str) -> list[str]:
    """Return the cells of the metric `name`."""
    row = re.search(rf'<tr><th scope="row">{re.escape(name)}(?![a-z/]).*?</tr>', html, flags=re.S)
    assert row is not None, name
    return [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row.group())]


@pytest.mark.parametrize("make", REPORTS.values(), ids=list(REPORTS))
def test_every_report_gives_a_page_whose_tags_are_closed_and_whose_charts_have_names(
    make: Callable[[], Report],
) -> None:
    html = render_page(make())
    assert_self_contained(html)
    assert 'role="img"' in html
    assert "None" not in words_of(html)
    assert "nan" not in words_of(html).split()


def test_texts_from_outside_are_shown_as_text() -> None:
    html = render_page(comparison_reports.hostile())
    assert "<script" not in html
    shown = HOSTILE.replace("\udcff", "\\udcff")
    assert f"<h1>{shown}</h1>" in unescape(html)
    assert words_of(html).count(shown) > 60


def test_the_recommendation_comes_first_and_sections_follow_in_order() -> None:
    report = comparison_reports.photographs()
    html = render_page(report)
    positions = [html.index(f'<section id="{name}">') for name in SECTIONS]
    assert positions == sorted(positions)
    assert html.index(" ".join(report.recommendation)) < positions[0]
    assert all(html.count(f'href="#{name}"') >= 1 for name in SECTIONS)


SECTIONS = ("epoch", "ratios", "figures", "stages", "profile", "splits", "fairness", "noise", "method")


def test_only_switched_off_rules_and_an_early_stop_have_a_banner() -> None:
    html = render_page(comparison_reports.unchecked())
    top = words_of(html[: html.index("<section")])
    assert "Rules not checked: samples, noise." in top
    assert "Stopped early after 2 rounds." in top
    assert "6 of 8 rules held, 2 not checked" in top
    assert 'class="banner"' not in render_page(comparison_reports.photographs())


def test_each_rule_says_in_words_whether_it_held_and_which_strategy_broke_it() -> None:
    broken = words_of(render_page(comparison_reports.disqualified()))
    assert "✗ not held Same samples 1 of 4 strategies differs async-presaved : batch 3 has other bytes" in broken
    assert broken.count("✓ held") == 7
    assert words_of(render_page(comparison_reports.unchecked())).count("? not checked Same samples switched off") == 1


def test_the_table_has_the_metrics_of_the_report() -> None:
    html = render_page(comparison_reports.photographs())
    assert row_of(html, "wall time, s") == ["6.31", "4.42", "3.31", "3.29"]
    assert row_of(html, "interference, s") == ["0.020", "0.640", "0.012", "0.121"]
    assert row_of(html, "samples/s") == ["317", "452", "604", "608"]
    assert row_of(html, "95% interval") == ["–", "0.67 to 0.73", "0.50 to 0.55", "0.50 to 0.55"]  # noqa: RUF001
    assert row_of(html, "disk, MB") == ["–", "–", "301", "301"]  # noqa: RUF001
    assert row_of(html, "pays off after") == ["–", "–", "3.1 epochs", "3.0 epochs"]  # noqa: RUF001
    assert row_of(render_page(comparison_reports.never_pays_off()), "pays off after")[1] == "never"


def test_a_loader_of_the_user_has_its_level_and_order_beside_its_ratio() -> None:
    report = comparison_reports.loaders_of_the_user()
    html = render_page(report)
    assert row_of(html, "samples") == ["–", "close (0.014)", "same amount", "same records"]  # noqa: RUF001
    assert row_of(html, "order") == [
        "–",  # noqa: RUF001
        "170.4",
        "another order",
        "0.0",
    ]
    assert row_of(html, "records measured") == ["512", "512", "512", "640"]
    assert row_of(html, "written in, s") == ["–", "–", "6.20", "–"]  # noqa: RUF001
    assert row_of(html, "format") == ["–"] * 4  # noqa: RUF001
    assert row_of(html, "pays off after") == ["–", "–", "8.9 epochs", "–"]  # noqa: RUF001
    assert row_of(html, "verdict") == ["reference", "faster", "faster", "disqualified"]
    assert "sorted : it does not shuffle, and other strategies do: 0.0 records from their place" in words_of(html)
    summaries = [row.summary for row in ratio_intervals(report).rows]
    assert [each.rpartition("faster")[2] for each in summaries[1:3]] == [", close (0.014)", ", same amount"]


def test_the_table_has_levels_only_beside_loaders_of_the_user() -> None:
    for make, has_levels in ((comparison_reports.photographs, False), (comparison_reports.loaders_of_the_user, True)):
        text = str(make())
        assert ("close (0.014)" in text) is has_levels
        assert ("same amount" in text) is has_levels
    assert "sorted is disqualified: samples: it does not shuffle, and other strategies do" in text


@pytest.mark.parametrize("make", [comparison_reports.photographs, comparison_reports.faster_beside_loading])
def test_a_bar_ends_at_the_wall_time_even_if_interference_is_negative(make: Callable[[], Report]) -> None:
    report = make()
    longest = max(each.parts.wall_seconds for each in report.strategies)
    for result, row in zip(report.strategies, epoch_bars(report).rows, strict=True):
        drawn = sum(each.width for each in row.bars)
        assert drawn == pytest.approx(result.parts.wall_seconds / longest * 100, abs=0.01)


def test_host_wait_has_a_row_only_if_it_is_not_the_stall() -> None:
    report = comparison_reports.photographs()
    assert "host wait" not in render_page(report)
    strategies = [replace(each, host_wait_seconds=each.parts.stall_seconds + 0.5) for each in report.strategies]
    ahead = replace(report, strategies=strategies)
    assert row_of(render_page(ahead), "host wait, s") == ["3.65", "1.15", "0.666", "0.538"]
    for shown, has_column in ((report, False), (ahead, True)):
        console = Console(file=io.StringIO(), width=250)
        show_report(shown, console)
        assert ("host wait" in console.file.getvalue()) is has_column


def test_if_every_strategy_needs_a_store_none_pays_off_or_fails_to() -> None:
    report = comparison_reports.photographs()
    html = render_page(replace(report, strategies=report.strategies[2:], timelines=[]))
    assert row_of(html, "pays off after") == ["–", "–"]  # noqa: RUF001
    assert "never" not in words_of(html)


def test_negative_interference_is_in_the_table_but_not_drawn() -> None:
    report = comparison_reports.faster_beside_loading()
    assert row_of(render_page(report), "interference, s")[1] == "−0.050"  # noqa: RUF001
    assert [each.kind for each in epoch_bars(report).rows[1].bars] == ["compute", "stall", "rest"]


def test_a_disqualified_strategy_is_striped_and_says_why() -> None:
    *others, last = epoch_bars(comparison_reports.disqualified()).rows
    assert last.warning.startswith("disqualified: samples: batch 3 has other bytes")
    assert not any(row.warning for row in others)
    assert render_page(comparison_reports.disqualified()).count('class="plot disqualified"') == 1


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
    chart = ratio_intervals(comparison_reports.unchecked())
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
    assert [percent(each, signed=True) for each in (0.034, -0.12, 0.0004)] == ["+3.4%", "−12%", "+0.04%"]  # noqa: RUF001
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
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
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
            rendered = render(f"{url}/report.html", picture, settle_seconds=1, dark=dark)
            assert rendered.console == []
            assert "Where the time of an epoch goes" in rendered.dom
            with Image.open(picture) as image:
                assert image.width == 1280
                corners[dark] = image.convert("RGB").getpixel((3, 3))
    assert requested == ["/report.html"] * 2
    assert corners == {False: (0xF3, 0xF4, 0xF6), True: (0x10, 0x13, 0x17)}


@NEEDS_CHROMIUM
def test_no_page_scrolls_sideways_or_clips_a_chart_on_a_phone(tmp_path: Path) -> None:
    assert_fit_on_a_phone({name: render_page(make()) for name, make in REPORTS.items()}, tmp_path)


def test_what_is_lost_is_on_the_page_and_in_one_line_for_the_reference_and_the_fastest() -> None:
    report = comparison_reports.photographs()
    html = render_page(report)
    raw = report.strategies[0]
    wall = raw.parts.wall_seconds
    assert row_of(html, "all that is lost")[0] == percent(raw.losses.lost_seconds / wall)
    assert row_of(html, "storage")[0] == percent(raw.losses.storage_seconds / wall)
    assert row_of(html, "storage is measured by") == ["cpu-time", "psi", "cpu-time", "psi"]
    console = Console(file=io.StringIO(), width=250)
    show_report(report, console)
    lines = [line for line in console.file.getvalue().splitlines() if " loses " in line]
    assert [line.partition(" ")[0] for line in lines] == ["raw", "async-presaved"]
    assert lines[0].startswith(f"raw loses {raw.losses.lost_seconds / wall:.0%}: ")


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
    assert row_of(render_page(unknown), "storage") == ["–"]  # noqa: RUF001
    assert row_of(render_page(unknown), "CPU") == ["–"]  # noqa: RUF001
    assert "storage or CPU " in str(unknown)
