"""The page of tuning: complete, self-contained, readable on any screen, and true to the result."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest

from etl.comparison.tuning.tuning_page import render_tuning_page
from etl.comparison.tuning.tuning_results import Tuning
from tests import tuning_results
from tests.comparison_reports import HOSTILE
from tests.pages import assert_self_contained, words_of
from tests.tuning_results import TUNINGS


@pytest.mark.parametrize("make", TUNINGS.values(), ids=list(TUNINGS))
def test_every_result_gives_a_complete_page_that_needs_no_network(make: Callable[[], Tuning]) -> None:
    tuning = make()
    html = render_tuning_page(tuning)
    assert_self_contained(html)
    words = words_of(html)
    assert not {"None", "nan", "True", "False"} & set(words.split())
    shown = [each.advice() for each in tuning.strategies] + [tuning.conclusion()]
    assert all(" ".join(each.replace("\udcff", "\\udcff").split()) in words for each in shown)


def test_texts_from_outside_are_shown_as_text() -> None:
    html = render_tuning_page(tuning_results.hostile())
    assert "<script" not in html
    shown = HOSTILE.replace("\udcff", "\\udcff")
    assert f"<h1>{shown}</h1>" in unescape(html)
    assert words_of(html).count(shown) > 60


def test_only_an_early_stop_and_failed_strategies_have_a_banner() -> None:
    assert 'class="banner"' not in render_tuning_page(tuning_results.photographs())
