"""The tables of tuning: which configurations they show, and what they say of the others."""

from __future__ import annotations

import io
from dataclasses import replace

from etl.commands.output import PlainConsole
from etl.comparison.tuning.tuning_results import Tuning
from etl.comparison.tuning.tuning_table import MAX_ROWS, mark_of, show_tuning, shown_configurations
from tests import tuning_results
from tests.comparison_reports import HOSTILE
from tests.tuning_results import configuration, strategy


def shown(tuning: Tuning) -> str:
    text = io.StringIO()
    show_tuning(tuning, PlainConsole(file=text, width=250, height=25))
    return text.getvalue()


def test_the_given_and_the_chosen_one_the_front_and_the_next_fastest_are_shown() -> None:
    result = tuning_results.my_loader()
    indices = shown_configurations(result)
    assert len(indices) == MAX_ROWS
    assert indices == sorted(indices)
    found = [result.configurations[index] for index in indices]
    assert result.as_given in found
    assert result.best in found
    assert all(each in found for each in result.configurations if each.is_on_front)
    left_out = [each for index, each in enumerate(result.configurations) if index not in indices]
    others = [each for each in found if not each.is_on_front and each is not result.as_given]
    assert max(each.costs.seconds for each in others) <= min(each.costs.seconds for each in left_out)


def test_a_front_of_many_is_shown_whole() -> None:
    tried = [configuration({"size": size}, 10 - size / 4, disk=10**size) for size in range(12)]
    many = strategy("many", [*tried, configuration({}, 10.5)], {})
    assert len(shown_configurations(many)) == 13
    none = [replace(each, is_on_front=False) for each in many.configurations]
    assert len(shown_configurations(replace(many, configurations=none))) == MAX_ROWS


def test_marks_tell_given_chosen_and_kept() -> None:
    chosen = tuning_results.my_loader()
    assert mark_of(chosen, chosen.best) == "chosen"
    assert mark_of(chosen, chosen.as_given) == "given"
    assert mark_of(chosen, chosen.configurations[0]) == ""
    kept = tuning_results.raw()
    assert [mark_of(kept, each) for each in kept.configurations] == ["", "kept"]
    (dropped, *_) = tuning_results.all_dropped().strategies
    assert {mark_of(dropped, each) for each in dropped.configurations} == {"", "given"}


def test_what_the_table_leaves_out_is_counted() -> None:
    dropped = shown(tuning_results.all_dropped())
    assert "10 more tried, all dropped; no time for 12 others" in dropped
    assert "#1, #2, #3, #4, #5, #6, #7, #18 were dropped: it takes 1,204 MB" in dropped


def test_texts_from_outside_have_no_markup() -> None:
    tuning = tuning_results.photographs()
    (first, *_) = tuning.strategies
    named = replace(first, name="[red]a\x1b[31m:smile:", failed={"[bold]x": "no [/] such"})
    text = shown(replace(tuning, strategies=[named]))
    assert "[red]a\\x1b[31m:smile:" in text
    assert "[bold]x: no [/] such" in text
    assert "\x1b" not in text
    assert HOSTILE.partition(" ")[0] in shown(tuning_results.hostile())
