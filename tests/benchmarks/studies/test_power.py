"""The study of comparisons of commits: false alarms, what is found, and how large a change truly is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.studies.power import (
    SAME,
    SLOWED,
    TWICE,
    Comparison,
    MetricRatios,
    Study,
    render,
    sentence,
    wanted_comparisons,
)

KEY, HIDDEN = ("raw", "etl"), ("async-raw", "wall")


def comparison(change: float, seconds: float = 60.0) -> Comparison:
    """Return a comparison whose ratios lie within 0.1% of `change`, in the metric that is not hidden."""
    logs = [change + 0.0001 * (number - 10) for number in range(20)]
    still = [0.0001 * (number - 10) for number in range(20)]
    return Comparison([MetricRatios(*KEY, logs), MetricRatios(*HIDDEN, still)], seconds)


@pytest.fixture
def study() -> Study:
    """Return comparisons of which one in four takes a commit for another one, and one in two finds the slowed copy."""
    made = {(SAME, number): comparison(change) for number, change in enumerate((0.0, 0.001, -0.03, -0.005))}
    made |= {(SLOWED, 0): comparison(0.024), (SLOWED, 1): comparison(0.001)}
    return Study({**made, (TWICE, 0): comparison(0.5877867)})  # exp of it is 1.8


def test_comparisons_are_shuffled_and_complete() -> None:
    wanted = wanted_comparisons(same=3, slowed=2)
    assert sorted(wanted) == [(SAME, 0), (SAME, 1), (SAME, 2), (SLOWED, 0), (SLOWED, 1), (TWICE, 0)]
    assert wanted != sorted(wanted)


def test_false_alarms_and_what_is_found_are_counted(study: Study) -> None:
    assert study.false_alarms == 1
    assert study.found(KEY, SLOWED) == 1
    assert study.found(HIDDEN, SLOWED) == 0


def test_a_change_is_found_if_the_shifted_interval_is_outside_the_margin(study: Study) -> None:
    found = {effect: study.found(KEY, SAME, effect) for effect in (0.0, 0.012, 0.02, 0.10)}
    assert found == {0.0: 0, 0.012: 2, 0.02: 3, 0.10: 4}  # one commit seems 3% faster


def test_the_true_change_is_that_of_the_share_that_is_loading(study: Study) -> None:
    assert study.truth(KEY) == pytest.approx(1 + 0.8 * SLOWED, rel=1e-3)
    assert study.truth(HIDDEN) is None
    assert Study({(SAME, 0): comparison(0.0)}).truth(KEY) is None


def test_the_documents_say_what_the_journal_says(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    lines = [{"experiment": "power"}, {"environment": {}}]
    lines += [{"key": list(key), "result": each.to_json()} for key, each in study.comparisons.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = render(path)
    assert "| raw | ETL alone | 1 of 4; -3.0% to +0.1% | 1 of 2; +2.4%, +1.3% | 75% | 75% | 100% | 100% |" in text
    assert text.endswith("Of 2 copies slowed by 3%, 1 were found. A comparison took 60 s.\n")
    assert sentence(path).startswith("Of 4 comparisons of a commit with itself 1 found a change: at most 81% do")
    assert "took" not in sentence(path)
