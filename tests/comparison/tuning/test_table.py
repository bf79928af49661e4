"""The tables of tuning: which configurations they show, and what they say of the others."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from etl.commands.output import PlainConsole
from etl.comparison.tuning.tuning_results import Tuning
from etl.comparison.tuning.tuning_table import MAX_ROWS, mark_of, show_tuning, shown_configurations
from tests import tuning_results
from tests.comparison_reports import HOSTILE
from tests.tuning_results import configuration, strategy


def shown(tuning: Tuning, columns: int = 250) -> str:
    text = io.StringIO()
    show_tuning(tuning, PlainConsole(file=text, width=columns, height=25))
    return text.getvalue()


def row(text: str, number: str) -> list[str]:
    """Return the cells of the first row that is called `number`."""
    line = next(each for each in text.splitlines() if each.startswith(f"│ {number} "))
    return [cell.strip() for cell in line.split("│")[1:-1]]


def headings(text: str) -> list[str]:
    """Return the headings of the first table."""
    line = next(each for each in text.splitlines() if each.startswith("┃"))
    return [cell.strip() for cell in line.split("┃")[1:-1]]


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
    assert len(shown_configurations(tuning_results.without_front(many))) == MAX_ROWS


def test_marks_tell_given_chosen_and_kept() -> None:
    chosen = tuning_results.my_loader()
    assert mark_of(chosen, chosen.best) == "chosen"
    assert mark_of(chosen, chosen.as_given) == "given"
    assert mark_of(chosen, chosen.configurations[0]) == ""
    kept = tuning_results.raw()
    assert [mark_of(kept, each) for each in kept.configurations] == ["", "kept"]
    (dropped, *_) = tuning_results.all_dropped().strategies
    assert {mark_of(dropped, each) for each in dropped.configurations} == {"", "given"}


def test_each_row_has_the_costs_of_its_configuration() -> None:
    text = shown(replace(tuning_results.photographs(), strategies=[tuning_results.presaved()]))
    assert row(text, "1") == ["1", "stage=normalise", "3.20", "", "", "6.20", "1.20", "400", "dropped"]
    assert row(text, "2 chosen") == [
        "2 chosen",
        "stage=resize",
        "3.31",
        "0.80",
        "0.77 to 0.84",
        "3.40",
        "0.301",
        "400",
        "front",
    ]
    assert row(text, "5 given") == ["5 given", "as given", "4.14", "1", "", "0.310", "0.078", "400", "front"]
    assert "#1 was dropped: it takes 1,204 MB on disk, above --max-disk" in text
    assert "as given: stage=read, format=npy, compression=None" in text


def test_columns_of_costs_that_no_configuration_has_are_left_out() -> None:
    tuning = tuning_results.photographs()
    loader = shown(replace(tuning, strategies=[tuning_results.my_loader()]))
    assert headings(loader) == ["#", "settings", "epoch, s", "ratio", "95% interval", "memory, MB", "mark"]
    unpaired = shown(replace(tuning_results.cached(), strategies=tuning_results.cached().strategies[2:3]))
    assert headings(unpaired) == [
        "#",
        "settings",
        "epoch, s",
        "prepare, s",
        "disk, GB",
        "memory, MB",
        "mark",
    ]


def test_what_the_table_leaves_out_is_counted() -> None:
    text = shown(replace(tuning_results.photographs(), strategies=[tuning_results.my_loader()]))
    assert "10 more tried; no time for 12 others; tuned in 183 s; 7 failed, the first 5:" in text
    assert text.count("ValueError: no such resize") == 5
    dropped = shown(tuning_results.all_dropped())
    assert "10 more tried, all dropped; no time for 12 others" in dropped
    assert "#1, #2, #3, #4, #5, #6, #7, #18 were dropped: it takes 1,204 MB" in dropped


def test_an_earlier_result_and_an_early_stop_are_said() -> None:
    text = shown(tuning_results.cached())
    assert text.startswith("STOPPED EARLY: not all configurations were tried")
    assert text.count("the result of an earlier run, which took 183 s") == 4
    assert "without rounds to confirm it" in text


def test_the_fastest_strategy_comes_last() -> None:
    tuning = tuning_results.photographs()
    *_, conclusion, measured = shown(tuning).splitlines()
    assert conclusion == tuning.conclusion()
    assert measured == "512 of 2,000 records of photographs/, in 754 s"
    failed = shown(tuning_results.all_failed())
    assert "raw could not be tuned: ValueError: it has no settings" in failed
    assert "No strategy can be recommended." in failed


@pytest.mark.parametrize("columns", [60, 250])
def test_texts_from_outside_have_no_markup(columns: int) -> None:
    tuning = tuning_results.photographs()
    (first, *_) = tuning.strategies
    named = replace(first, name="[red]a\x1b[31m:smile:", failed={"[bold]x": "no [/] such"})
    text = shown(replace(tuning, strategies=[named]), columns)
    assert "[red]a\\x1b[31m:smile:" in text
    assert "[bold]x: no [/] such" in text
    assert "\x1b" not in text
    assert HOSTILE.partition(" ")[0] in shown(tuning_results.hostile(), columns)
