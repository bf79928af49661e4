"""The front page of the history: the newest commit by its parts, all commits, and what changed, from asv's files."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import asv
import pytest
from asv.results import Results
from asv.runner import BenchmarkResult

from benchmarks.cells import chosen_profile
from benchmarks.measuring.statistics import Interval
from benchmarks.publish.front_page import SUITE, History, find_changes, read_history, render, write
from benchmarks.publish.history_table import wall_ratios
from tests import browser

STRATEGIES = ("raw", "presaved")
ROUNDS = 6
# Seconds of an epoch.
EPOCHS = {
    "raw": {"wall": 0.25, "compute": 0.05, "stall": 0.19, "etl": 0.19, "utilisation": 0.16},
    "presaved": {"wall": 0.05, "compute": 0.045, "stall": 0.004, "etl": 0.002, "utilisation": 0.8},
}


def add_commit(
    results: Path,
    number: int,
    epochs: Mapping[str, Mapping[str, float]] = EPOCHS,
    *,
    machine: str = "here",
    version: str | None = None,
    measured_at: int = 0,
    record_samples: bool = True,
    numpy: str = "2.2.6",
) -> str:
    """Save what asv would save of a commit, and return its hash."""
    name = f"{number:040x}"[::-1]
    result = Results(
        {"machine": machine, "cpu": "a processor", "num_cpu": "2", "ram": "25276510208", "numpy": numpy},
        {"numpy": numpy},
        name,
        1_700_000_000_000 + number * 86_400_000,
        "3.11",
        "environment",
        {},
    )
    for metric in next(iter(epochs.values())):
        benchmark = {
            "name": f"{SUITE}.track_{metric}",
            "version": version or chosen_profile().version,
            "params": [[repr(each) for each in epochs]],
        }
        samples = [[each[metric] * (1 + 0.01 * turn) for turn in range(ROUNDS)] for each in epochs.values()]
        medians = [each[metric] for each in epochs.values()]
        values = BenchmarkResult(medians, samples, [1] * len(epochs), 0, "", None)
        started = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        result.add_result(
            benchmark,
            values,
            started + datetime.timedelta(hours=measured_at or number),
            1.0,
            record_samples=record_samples,
        )
    result.save(str(results))
    (results / machine / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
    return name


def slower(factor: float) -> dict[str, dict[str, float]]:
    """Return the epochs with a `presaved` that takes `factor` times as long."""
    metrics = {name: value * (1 if name == "utilisation" else factor) for name, value in EPOCHS["presaved"].items()}
    return {**EPOCHS, "presaved": metrics}


def history_of(results: Path, names: Sequence[str]) -> History:
    return read_history(results, chosen_profile(), {name: number for number, name in enumerate(names)})


def page_of(results: Path, names: Sequence[str]) -> str:
    return render(history_of(results, names), chosen_profile(), {}, "a project")


def test_the_parts_of_the_newest_commit_add_up_to_its_wall_time(tmp_path: Path) -> None:
    (commit,) = history_of(tmp_path, [add_commit(tmp_path, 1)]).commits
    for epoch in commit.epochs.values():
        assert sum(epoch.parts.values()) == pytest.approx(epoch.wall)
    raw = commit.epochs["raw"]
    assert raw.parts["compute"] == pytest.approx(0.16 * 0.25 * 1.025 * 1.025, rel=1e-6)


def test_the_page_has_a_bar_for_each_strategy_with_its_ratio(tmp_path: Path) -> None:
    page = page_of(tmp_path, [add_commit(tmp_path, 1)])
    assert page.count('<div class="row">') == len(STRATEGIES)
    assert "0.20 of raw (0.20 to 0.20)" in " ".join(page.split())
    assert "a processor" in page
    assert "25.3 GB" in page
    assert not re.search(r'(src|href)="(https?:)?//', page)


def test_one_commit_is_a_dot_and_more_are_a_line(tmp_path: Path) -> None:
    names = [add_commit(tmp_path, 1)]
    page = page_of(tmp_path, names)
    assert page.count("<circle") == len(STRATEGIES)
    assert "A dot is one commit" in page
    assert "There is no earlier commit" in page
    names += [add_commit(tmp_path, number) for number in range(2, 31)]
    page = page_of(tmp_path, names)
    assert page.count("<circle") == 30 * len(STRATEGIES)
    assert "A dot is one commit" not in page


def test_what_changed_most_comes_first_and_says_if_samples_are_apart(tmp_path: Path) -> None:
    names = [add_commit(tmp_path, 1), add_commit(tmp_path, 2, slower(1.5))]
    before, after = history_of(tmp_path, names).commits
    changes = find_changes(before.result, after.result, {f"{SUITE}.track_wall": {"unit": "seconds"}})
    assert {each.parameters for each in changes} == {"'presaved'"}
    assert all(each.is_separate for each in changes)
    assert all(each.ratio == pytest.approx(1.5) for each in changes)
    assert {each.unit for each in changes if each.benchmark.endswith("wall")} == {"seconds"}
    assert find_changes(after.result, after.result, {}) == []
    page = page_of(tmp_path, names)
    assert 'class="worse">1.50</td>' in page
    assert f"since {names[0][:8]}" in page


@pytest.mark.parametrize(("before", "after", "shown"), [(0.4, 0.8, 'better">2.00<'), (0.8, 0.4, 'worse">0.50<')])
def test_more_utilisation_is_better(tmp_path: Path, before: float, after: float, shown: str) -> None:
    epochs = [{**EPOCHS, "presaved": {**EPOCHS["presaved"], "utilisation": each}} for each in (before, after)]
    page = page_of(tmp_path, [add_commit(tmp_path, number, each) for number, each in enumerate(epochs, 1)])
    assert re.findall(r'<td class="(\w+">[\d.]+<)', page) == [shown]


def test_samples_of_a_change_within_their_spread_are_not_called_apart(tmp_path: Path) -> None:
    names = [add_commit(tmp_path, 1), add_commit(tmp_path, 2, slower(1.02))]
    before, after = history_of(tmp_path, names).commits
    changes = find_changes(before.result, after.result, {})
    assert changes
    assert not any(each.is_separate for each in changes)


def test_commits_are_in_the_order_of_the_history_and_those_of_other_profiles_are_left_out(tmp_path: Path) -> None:
    later, earlier = add_commit(tmp_path, 2, measured_at=1), add_commit(tmp_path, 1, measured_at=2)
    add_commit(tmp_path, 3, version="another profile")
    add_commit(tmp_path, 4)  # not in the history that is published
    found = read_history(tmp_path, chosen_profile(), {earlier: 1, later: 2, f"{3:040x}"[::-1]: 3})
    assert [each.name for each in found.commits] == [earlier, later]


def test_only_the_machine_that_measured_last_is_shown_and_the_others_are_named(tmp_path: Path) -> None:
    names = [add_commit(tmp_path, 1, machine="elsewhere"), add_commit(tmp_path, 2)]
    found = history_of(tmp_path, names)
    assert [each.name for each in found.commits] == names[1:]
    assert found.other_machines == ["elsewhere"]
    assert "Other machines in the results: elsewhere" in page_of(tmp_path, names)


def test_the_page_says_from_which_commit_on_a_library_has_another_version(tmp_path: Path) -> None:
    names = [add_commit(tmp_path, number, numpy=numpy) for number, numpy in enumerate(("2.2.6", "2.2.6", "2.4.0"), 1)]
    page = page_of(tmp_path, names)
    (said,) = re.findall(r"From (\w+) on with (.*?):", page)
    assert said == (names[2][:8], "numpy 2.2.6 to 2.4.0")


def test_without_results_the_page_says_how_to_get_some(tmp_path: Path) -> None:
    page = page_of(tmp_path, [])
    assert "Nothing was measured yet" in page
    assert "asv run --record-samples" in page


def test_without_samples_the_page_has_the_values_and_says_that_there_is_no_interval(tmp_path: Path) -> None:
    page = " ".join(page_of(tmp_path, [add_commit(tmp_path, 1, record_samples=False)]).split())
    assert page.count('<div class="row">') == len(STRATEGIES)
    assert "0.20 of raw</span>" in page
    assert "asv recorded no samples" in page


def test_strategies_with_unequal_rounds_have_a_ratio_without_an_interval() -> None:
    whole = {"raw": [2.0, 2.1, 1.9] * 2, "presaved": [1.0, 1.05, 0.95] * 2}
    assert wall_ratios(whole)["presaved"] == Interval(pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 6)
    fewer = wall_ratios({**whole, "presaved": [1.0, 1.1]})["presaved"]
    assert (fewer.estimate, fewer.low) == (pytest.approx(0.525), None)
    assert wall_ratios({"presaved": [1.0]}) == {}


def test_names_are_escaped(tmp_path: Path) -> None:
    epochs: dict[str, Any] = {**EPOCHS, "<b>mine</b>": EPOCHS["raw"]}
    assert "<b>mine" not in page_of(tmp_path, [add_commit(tmp_path, 1, epochs)])


@pytest.fixture
def html_dir(tmp_path: Path) -> Path:
    """asv's own page, as `asv publish` leaves it."""
    return Path(shutil.copytree(Path(asv.__file__).parent / "www", tmp_path / "html"))


def test_asvs_own_pages_move_and_old_addresses_lead_there(html_dir: Path) -> None:
    own = (html_dir / "index.html").read_text()
    write(html_dir, render(History([], []), chosen_profile(), {}, "a project"))
    moved = (html_dir / "asv.html").read_text()
    assert moved.replace('  <script src="boxes.js"></script>\n  </head>', "</head>") == own
    assert moved != own
    assert 'location.replace("asv.html" + location.hash)' in (html_dir / "index.html").read_text()


@pytest.mark.skipif(browser.find_chromium() is None, reason="no Chromium to render the page with")
@pytest.mark.parametrize("commits", [1, 30])
def test_the_page_renders_without_an_error(commits: int, html_dir: Path, tmp_path: Path) -> None:
    names = [add_commit(tmp_path, number) for number in range(1, commits + 1)]
    write(html_dir, page_of(tmp_path, names))
    with browser.serve(html_dir) as url:
        shown = browser.render(f"{url}/index.html", tmp_path / "page.png")
    assert shown.console == []
