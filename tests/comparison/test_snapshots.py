"""Reports and results of tuning look as before: as tables in a narrow and a wide terminal, and as the text of a page.

After a change that is meant, `FAIR_ETL_SNAPSHOTS=write pytest tests/comparison/test_snapshots.py` writes the files of
`tests/comparison/snapshots`: read what `git diff` shows of them.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from etl.commands.output import PlainConsole
from etl.comparison.show.page import render_page
from etl.comparison.show.report_table import show_report
from etl.comparison.tuning.tuning_page import render_tuning_page
from etl.comparison.tuning.tuning_table import show_tuning
from tests import comparison_reports, tuning_results

SNAPSHOTS = Path(__file__).with_name("snapshots")


def table(columns: int, show: Callable[[Console], None]) -> str:
    """Return what `show` prints on a terminal of this width."""
    text = io.StringIO()
    show(PlainConsole(file=text, width=columns, height=25))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def text_of(html: str) -> str:
    """Return the text of a page: a line for each paragraph, heading, item and row, with bars between cells."""
    body = re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.S))
    cells = re.sub(r"</t[hd]> ?(?=<t[hd])", " | ", body)
    lines = re.split(r"</(?:p|h\d|li|tr|dt|dd|summary|caption)>", cells)
    words = (" ".join(unescape(re.sub(r"<[^>]*>", " ", line)).split()) for line in lines)
    return "".join(f"{each}\n" for each in words if each)


def compared(columns: int) -> str:
    return table(columns, lambda console: show_report(comparison_reports.everything(), console))


def decisive() -> str:
    """Return what `etl compare` shows of an ordinary report."""
    report = replace(comparison_reports.photographs(), stages=[])
    return table(80, lambda console: show_report(report, console, is_whole=False))


def tuned(columns: int) -> str:
    return table(columns, lambda console: show_tuning(tuning_results.everything(), console))


SHOWN = {
    "compare-80.txt": lambda: compared(80),
    "compare-decisive.txt": decisive,
    "compare-250.txt": lambda: compared(250),
    "compare-page.txt": lambda: text_of(render_page(comparison_reports.everything())),
    "tune-80.txt": lambda: tuned(80),
    "tune-250.txt": lambda: tuned(250),
    "tune-page.txt": lambda: text_of(render_tuning_page(tuning_results.everything())),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_what_was_shown_before(name: str) -> None:
    shown = SHOWN[name]()
    if os.environ.get("FAIR_ETL_SNAPSHOTS") == "write":
        (SNAPSHOTS / name).write_text(shown, "utf-8")
    assert shown == (SNAPSHOTS / name).read_text("utf-8"), "if that is meant, see the docstring of this module"


def test_what_decides_fits_on_one_screen_and_names_how_to_see_the_rest() -> None:
    shown = decisive()
    assert len(shown.splitlines()) <= 24
    assert "-v shows" in shown
