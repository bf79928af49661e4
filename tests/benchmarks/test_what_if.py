"""The validation of predictions for other machines: errors that are known, and cases that predict others."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.what_if import Case, Errors, Predicted, Study, cold_case, photograph_cases, waiting_cases
from etl.comparison.scenario import WhatIf


def test_errors_are_those_of_the_medians_of_all_turns() -> None:
    study = Study()
    for predicted, measured in ((1.0, 1.0), (1.1, 1.0), (5.0, 9.0)):
        study.predicted.setdefault(("reference", "other"), {}).setdefault("raw", []).append((predicted, 0.5))
        study.add("other", "raw", measured, 0.4)
    study.predicted["reference", "nowhere"] = {"raw": [(1.0, 1.0)]}  # a case that was not measured
    (found,) = study.results({"reference": "group"})
    assert (found.group, found.scenario, found.strategy) == ("group", "other", "raw")
    assert found.error == pytest.approx(0.1)
    assert (found.predicted_utilisation, found.measured_utilisation) == (0.5, 0.4)


def test_the_share_within_10_percent_counts_errors_of_both_signs() -> None:
    found = [Predicted("", "", "", "", 1 + error, 1.0, 1.0, 1.0) for error in (-0.2, -0.09, 0.01, 0.3)]
    errors = Errors.of(found)
    assert (errors.count, errors.share_close) == (4, 0.5)
    assert (errors.median, errors.largest) == (pytest.approx(0.145), pytest.approx(0.3))


def all_cases() -> list[Case]:
    cases = photograph_cases("photographs")
    return [*(case for each in cases.values() for case in each), *waiting_cases(), cold_case(Path("images"))]


def test_every_case_has_its_own_name_and_predicts_cases_that_are_measured() -> None:
    cases = all_cases()
    names = [each.name for each in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        for name, scenario in case.predicts.items():
            assert name in {*names, "half cached", "warm"}
            WhatIf.parse(scenario).check(is_cold=case.settings.get("cache") == "cold")
