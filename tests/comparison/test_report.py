"""Derived values of a report are published, and computed from the others so that they cannot contradict them."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from etl.arguments import printable
from etl.comparison.judge.make_report import describe_machine
from etl.comparison.judge.recommendation import recommend
from etl.comparison.judge.report import StrategyResult
from etl.comparison.show.report import Report
from etl.measuring.statistics import Interval
from tests import comparison_reports
from tests.comparison_reports import REPORTS
from tests.report_schema import make_schema


def changed(number: int, **metrics: Any) -> StrategyResult:
    """Return strategy `number` of a report in which it has other metrics."""
    return comparison_reports.changed(number, **metrics).strategies[number]


@pytest.mark.parametrize("make", REPORTS.values(), ids=list(REPORTS))
def test_every_report_as_json_is_valid_by_the_schema(make: Callable[[], Report]) -> None:
    jsonschema.Draft202012Validator(make_schema()).validate(json.loads(json.dumps(make().as_dict())))


def test_a_section_in_two_reports_belongs_to_each() -> None:
    report = comparison_reports.photographs()
    twice = replace(report, source_records=2 * report.source_records)
    assert twice.strategies[0].samples_per_second == 2 * report.strategies[0].samples_per_second
    assert report.strategies[0].parent is report
    assert twice.strategies[0].parent is twice
    assert twice.strategies[2].presaving is not None
    assert twice.strategies[2].presaving.parent.parent is twice


def test_the_parts_and_what_is_unexplained_are_the_wall_time() -> None:
    parts = changed(1).parts.as_dict()
    wall = parts.pop("wall_seconds")
    assert sum(parts.values()) == pytest.approx(wall, rel=1e-12)


def test_throughput_and_overlap_follow_from_the_times() -> None:
    result = changed(2)
    assert result.samples_per_second == 2000 / 3.31
    assert result.accelerator_utilisation == 3.12 / 3.31
    assert result.overlap == 3.12 / 3.31  # compute alone, which is the longer
    assert changed(2, etl_alone_seconds=3.3).overlap == 3.3 / 3.31


def test_the_split_that_was_taken_is_the_one_the_rounds_measured() -> None:
    assert [split.is_taken for split in changed(1).splits] == [False, True]
    assert [split.is_taken for split in changed(1, compute_threads=1, loading_threads=1).splits] == [True, False]


def test_the_reference_is_the_first_strategy_and_was_measured_in_each_round() -> None:
    report = comparison_reports.photographs()
    assert (report.reference, report.rounds) == ("raw", 9)
    assert replace(report, strategies=report.strategies[1:]).reference == "async-raw"


def test_rules_that_were_not_checked_are_listed() -> None:
    assert comparison_reports.photographs().unchecked == []
    assert comparison_reports.everything().unchecked == ["sum"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.8, 0.99, "faster"),
        (1.01, 1.2, "slower"),
        (0.9, 1.1, "no difference shown"),
        (1.0, 1.1, "no difference shown"),
        (None, None, "too few rounds"),
    ],
)
def test_a_difference_is_shown_only_if_the_interval_excludes_1(
    low: float | None, high: float | None, said: str
) -> None:
    estimate = 1.0 if low is None or high is None else (low + high) / 2
    assert changed(1, ratio=Interval(estimate, low, high, 9)).verdict == said
    assert changed(0).verdict == "reference"


def test_a_strategy_that_broke_a_rule_is_disqualified_and_says_which() -> None:
    report = comparison_reports.broken_by("presaved")
    assert [each.verdict for each in report.strategies] == ["reference", "faster", "disqualified", "faster"]
    assert [each.disqualified for each in report.strategies] == [[], [], ["samples: other pixels"], []]


def test_a_store_pays_off_when_what_it_saves_in_each_epoch_has_come_to_what_it_took() -> None:
    report = comparison_reports.photographs()
    assert report.break_even_epochs(4.42, wall_seconds=2.21) == pytest.approx(2.0)  # the fastest plain one takes 4.42 s
    presaving = report.strategies[2].presaving
    assert presaving is not None
    assert presaving.break_even_epochs == pytest.approx(3.4 / (4.42 - 3.31))
    stages = {stage.stage: stage.break_even_epochs for stage in report.stages}
    assert stages["decode"] == pytest.approx(5.13 / (4.42 - 4.13))
    assert stages["raw"] is None
    assert stages["read"] is None  # it takes longer than the fastest plain strategy


def test_a_store_pays_off_only_if_it_is_faster_than_a_strategy_without_one_that_broke_no_rule() -> None:
    report = comparison_reports.photographs()
    assert [report.break_even_epochs(6.0, wall) for wall in (4.42, 5.0)] == [None, None]
    assert replace(report, strategies=report.strategies[2:]).break_even_epochs(6.0, 1.0) is None
    broken = comparison_reports.broken_by("async-raw")
    assert broken.break_even_epochs(6.31, wall_seconds=3.155) == pytest.approx(2.0)  # raw takes 6.31 s


def test_a_quiet_machine_gives_no_warning() -> None:
    noise = comparison_reports.changed_round(1, speed_probe_seconds=0.0102 * 1.05).noise
    assert noise.warnings == []
    assert (noise.steal_median, noise.steal_highest) == (0.004, 0.004)
    assert (noise.other_processes_median, noise.other_processes_highest) == (0.012, 0.012)
    assert noise.speed_spread == pytest.approx(1.05)


@pytest.mark.parametrize(
    ("metrics", "warning"),
    [
        ({"steal": 0.3}, "The hypervisor took up to 30% of the CPU time (median 0.4%)"),
        ({"other_processes": 0.2}, "Other processes took up to 20% of the CPU time (median 1.2%)"),
        ({"speed_probe_seconds": 0.0102 * 1.3}, "The speed of the CPU changed by a factor of 1.30"),
    ],
)
def test_one_disturbed_round_gives_a_warning(metrics: dict[str, float], warning: str) -> None:
    (found,) = comparison_reports.changed_round(1, **metrics).noise.warnings
    assert found.startswith(warning)


def throttled(share: float) -> Report:
    """Return a report whose second strategy was throttled in most of its rounds."""
    first, *others = comparison_reports.photographs().strategies[1].rounds
    return changed(1, rounds=[first, *(replace(each, throttled=share) for each in others)]).parent


def test_nothing_is_claimed_if_a_quota_stopped_the_processes() -> None:
    report = throttled(0.97)
    assert report.noise.throttled == 0.97
    assert report.noise.warnings[0].startswith("The CPU quota was used up in 97% of its periods (cpu.stat)")
    assert [each.verdict for each in report.strategies] == ["reference", *["CPU quota"] * 3]
    (sentence,) = recommend(report, {}, "photos")
    assert sentence.startswith("Nothing is recommended: a CPU quota was used up in 97% of its periods")


def test_a_quota_that_is_hardly_used_up_changes_nothing() -> None:
    report = throttled(0.04)
    assert report.noise.warnings == []
    assert "CPU quota" not in [each.verdict for each in report.strategies]


def test_host_wait_is_shown_once_it_differs_from_the_stall_by_one_percent() -> None:
    for more, shown in ((0.043, False), (0.045, True), (-0.045, True)):
        result = changed(1, host_wait_seconds=0.648 + more)
        assert result.parent.shows_host_wait() is shown


def test_the_text_of_a_report_is_text_in_a_notebook_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = comparison_reports.photographs()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "async-presaved" in str(report)
    assert capsys.readouterr().out == ""


def test_the_text_of_a_report_shows_texts_from_outside_as_they_are() -> None:
    reason, name = "mine failed: KeyError: '[/INST]', after [bold] and :cat:", "mine\x1b[2J"
    report = replace(comparison_reports.changed(1, name=name), notes=[f"{reason} in {name}"])
    assert f"{reason} in {printable(name)}" in str(report)
    assert "\x1b" not in str(report)


def test_a_machine_that_hides_files_of_the_kernel_is_described_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def read(path: Path, *arguments: Any, **options: Any) -> str:
        if str(path).startswith(("/proc/cpuinfo", "/sys/kernel", "/sys/devices")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read)
    machine = describe_machine()
    assert machine["processor"]
    assert machine["kernel"] == {"mitigations": ""}


def test_a_saved_report_takes_the_place_of_an_earlier_file_as_a_whole(tmp_path: Path) -> None:
    path, earlier, link = (tmp_path / name for name in ("report.json", "earlier", "latest.json"))
    path.write_text("earlier")
    earlier.hardlink_to(path)
    link.symlink_to(path)
    report = comparison_reports.photographs()
    report.save(link)
    assert link.is_symlink()
    assert json.loads(path.read_text())["title"] == report.title
    assert earlier.read_text() == "earlier"
