"""The validation of predictions for other machines: errors that are known, and cases that predict others."""

from __future__ import annotations

import io
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.studies.what_if import (
    Case,
    CaseEpoch,
    CaseResult,
    Predicted,
    describe_errors,
    held_in_page_cache,
    photograph_cases,
    predictions,
    show,
    storage_cases,
    waiting_cases,
)
from etl.comparison.request.scenario import WhatIf
from etl.measuring.page_cache import pages_outside


def test_errors_are_those_of_the_medians_of_all_turns() -> None:
    results = {
        (turn, case): CaseResult([CaseEpoch("raw", seconds, 0.4)], predicted)
        for turn, (guess, measured) in enumerate(((1.0, 1.0), (1.1, 1.0), (5.0, 9.0)))
        for case, seconds, predicted in (
            # The last is a case that was not measured.
            (
                "reference",
                2.0,
                {"other": [CaseEpoch("raw", guess, 0.5, ["a reason"])], "nowhere": [CaseEpoch("raw", 1.0, 1.0)]},
            ),
            ("other", measured, {}),
        )
    }
    (found,) = predictions(results, {"reference": "group"})
    assert (found.group, found.scenario, found.strategy) == ("group", "other", "raw")
    assert found.error == pytest.approx(0.1)
    assert found.extrapolated == ["a reason"]
    assert (found.predicted_utilisation, found.measured_utilisation) == (0.5, 0.4)


def test_the_share_within_10_percent_counts_errors_of_both_signs() -> None:
    found = [Predicted("", "", "", "", 1 + error, 1.0, 1.0, 1.0) for error in (-0.2, -0.09, 0.01, 0.3)]
    assert describe_errors(found) == ["4", "14.5%", "50%", "30%"]


def test_extrapolated_predictions_are_not_among_the_interpolated() -> None:
    console = Console(file=io.StringIO(), width=120)
    near, far = (
        Predicted("CPUs", "", "", "", 1.01, 1.0, 1.0, 1.0),
        Predicted("CPUs", "", "", "", 2.0, 1.0, 1.0, 1.0, ["x"]),
    )
    show([near, far], console)
    rows = [line.split("│")[1:-1] for line in console.file.getvalue().splitlines() if "│" in line]  # type: ignore[attr-defined]
    errors = {row[0].strip(): [each.strip() for each in row[1:3]] for row in rows if len(row) == 5}
    assert errors == {"CPUs": ["1", "1.0%"], "all interpolated": ["1", "1.0%"], "extrapolated": ["1", "100.0%"]}


def test_files_that_are_held_stay_in_the_page_cache(tmp_path: Path) -> None:
    held, dropped = tmp_path / "held", tmp_path / "dropped"
    for path in (held, dropped):
        path.write_bytes(bytes(10 * mmap.PAGESIZE))
    program = (
        "import sys, pathlib, etl.measuring.page_cache as c; c.drop_from_page_cache(map(pathlib.Path, sys.argv[1:]))"
    )
    drop = [sys.executable, "-c", program, str(held), str(dropped)]
    with held_in_page_cache([held]):
        subprocess.run(drop, check=True)
        assert pages_outside([held]) == 0
        assert pages_outside([dropped]) in (0, 10)  # 0 where the file system has no page cache to drop from
    subprocess.run(drop, check=True)
    assert pages_outside([held]) == pages_outside([dropped])


def all_cases() -> list[Case]:
    cases = photograph_cases("photographs")
    return [*(case for each in cases.values() for case in each), *waiting_cases(), *storage_cases(Path("images"))]


def test_every_case_has_its_own_name_and_predicts_cases_that_are_measured() -> None:
    cases = all_cases()
    names = [each.name for each in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        for name, scenario in case.predicts.items():
            assert name in names
            WhatIf.parse(scenario).check(is_cold=case.settings.get("cache") == "cold")
