"""The validation of predictions for other machines: errors that are known, and cases that predict others."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.what_if import (
    CaseEpoch,
    CaseResult,
    Predicted,
    all_cases,
    errors,
    held_in_page_cache,
    predictions,
    render,
)
from etl.comparison.request.scenario import WhatIf
from etl.measuring.page_cache import drop_from_page_cache, pages_outside
from tests.programs import output_of


def test_even_turns_predict_and_odd_ones_judge() -> None:
    results = {
        (turn, case): CaseResult([CaseEpoch("raw", seconds)], predicted)
        for turn, (guess, measured) in enumerate(((1.0, 1.05), (9.0, 1.0), (1.1, 0.95), (9.0, 1.0), (1.2, 1.05)))
        for case, seconds, predicted in (
            # The last is a case that was not measured.
            (
                "reference",
                2.0,
                {"other": [CaseEpoch("raw", guess, ["a reason"])], "nowhere": [CaseEpoch("raw", 1.0)]},
            ),
            ("other", measured, {}),
        )
    }
    (found,) = predictions(results, {"reference": "group"})
    assert (found.group, found.scenario, found.strategy) == ("group", "other", "raw")
    assert found.error == pytest.approx(0.1)
    assert found.error_again == pytest.approx(0.05)
    assert found.extrapolated == ["a reason"]


def test_a_prediction_that_any_turn_extrapolates_is_not_among_the_interpolated() -> None:
    reasons: tuple[list[str], ...] = (["a reason"], [], [])  # the device was just beyond what was measured, once
    results = {
        (turn, case): CaseResult([CaseEpoch("raw", 1.0)], predicted)
        for turn, extrapolated in enumerate(reasons)
        for case, predicted in (("reference", {"other": [CaseEpoch("raw", 1.0, extrapolated)]}), ("other", {}))
    }
    (found,) = predictions(results, {"reference": "group"})
    assert found.extrapolated == ["a reason"]


@pytest.mark.parametrize(
    ("predicted", "again", "good"), [(1.09, 1.0, True), (0.89, 1.0, False), (0.7, 0.85, True), (0.69, 1.15, False)]
)
def test_a_prediction_is_as_good_as_the_scenario_itself_allows(predicted: float, again: float, good: bool) -> None:
    assert Predicted("", "", "", "", predicted, again, 1.0).is_good is good


def test_extrapolated_predictions_are_not_among_the_interpolated() -> None:
    near, far = Predicted("CPUs", "", "", "", 1.01, 0.98, 1.0), Predicted("CPUs", "", "", "", 2.0, 1.0, 1.0, ["x"])
    line = ["1", "1.0%", "2.0%", "100%", "1%"]
    assert errors([near, far]) == [
        ["CPUs", *line],
        ["all interpolated", *line],
        ["extrapolated", "1", "100.0%", "0.0%", "0%", "100%"],
    ]


def test_the_documents_have_every_prediction(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"experiment": "what-if"}, {"environment": {}}]
    epochs = [CaseEpoch("raw", 2.0)]
    for turn in range(2):
        reference = CaseResult(epochs, {"device 2": [CaseEpoch("raw", 2.1)]})
        for name, result in (("device 1", reference), ("device 2", CaseResult(epochs, {}))):
            lines.append({"key": [turn, name], "result": result.to_json()})
    path = tmp_path / "what-if.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "| compute | 1 | 5.0% | 0.0% | 100% | 5% |" in render(path)
    assert "| device 1 | device 2 | raw | 2,100 | 2,000 | +5.0% | +0.0% |  |" in render(path)


def test_files_that_are_held_stay_in_the_page_cache(tmp_path: Path) -> None:
    held, dropped = tmp_path / "held", tmp_path / "dropped"
    for path in (held, dropped):
        path.write_bytes(bytes(10 * mmap.PAGESIZE))
    program = (
        "import sys, pathlib, etl.measuring.page_cache as c; c.drop_from_page_cache(map(pathlib.Path, sys.argv[1:]))"
    )
    with held_in_page_cache([held]):
        output_of("-c", program, held, dropped)
        drop_from_page_cache([held, dropped])  # a comparison does so in this process, too, which maps the file
        assert pages_outside([held]) == 0
        assert pages_outside([dropped]) in (0, 10)  # 0 where the file system has no page cache to drop from
    output_of("-c", program, held, dropped)
    assert pages_outside([held]) == pages_outside([dropped])


def test_every_case_has_its_own_name_and_predicts_cases_that_are_measured() -> None:
    cases = [case for each in all_cases("photographs", Path("images")).values() for case in each]
    names = [each.name for each in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        for name, scenario in case.predicts.items():
            assert name in names
            WhatIf.parse(scenario).check(is_cold=case.settings.get("cache") == "cold")
