"""Two commits against each other: real commits and processes, and statistics of metrics whose truth is known."""

from __future__ import annotations

import json
import math
import random
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import benchmarks
from benchmarks.compare_commits.__main__ import compare, main
from benchmarks.compare_commits.commits import Commit, NoSuchCommit, extract
from benchmarks.compare_commits.commits_table import as_json, summary
from benchmarks.compare_commits.commits_turns import MIN_ROUNDS
from benchmarks.compare_commits.commits_worker import METRICS, WORKS, SlowLoader, make_data, overlaps
from benchmarks.datasets import DATA_VARIABLE
from benchmarks.measuring.arrays import BatchDigest
from benchmarks.measuring.same_work import DifferentWork
from benchmarks.measuring.statistics import Interval, Outcome
from benchmarks.publish import history_table
from benchmarks.studies.power import METHOD_FILES
from benchmarks.verdict import Verdict, judge
from benchmarks.workload import make_iterator
from tests.scratch import ROOT, Scratch, make_scratch

COMPARE = "benchmarks.compare_commits"


@dataclass(frozen=True)
class Commits:
    """A repository with a commit, one that changes no code, one that loads 1.6 times as slowly, and one that loads
    other pixels.
    """

    scratch: Scratch
    base: str
    same: str
    slow: str
    other: str


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> Commits:
    scratch = make_scratch(tmp_path_factory.mktemp("commits"))
    base = scratch.commit("Base")
    (scratch.folder / "CHANGELOG.md").write_text("A change that no benchmark can see.\n")
    same = scratch.commit("The same code")
    loading = scratch.folder / "etl/loading/batch_plan.py"
    code = loading.read_text()
    loading.write_text(code + MORE_SLOWLY)
    slow = scratch.commit("Load 1.6 times as slowly")
    loading.write_text(code + OTHER_PIXEL)
    other = scratch.commit("Change a pixel")
    return Commits(scratch, base, same, slow, other)


MORE_SLOWLY = """

_load = BatchPlan.load


def _load_more_slowly(self, first, last, cursor):
    from time import thread_time

    started = thread_time()
    _load(self, first, last, cursor)
    ended = thread_time()
    while thread_time() < ended + 0.6 * (ended - started):
        pass


BatchPlan.load = _load_more_slowly
"""
OTHER_PIXEL = """

_right = BatchPlan.load


def _wrong(self, first, last, cursor):
    _right(self, first, last, cursor)
    self.arrays["features"][first].flat[0] += 1


BatchPlan.load = _wrong
"""


@pytest.mark.alone
def test_the_same_code_is_neither_slower_nor_faster(commits: Commits, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    compared = commits.scratch.run(
        COMPARE, commits.base, commits.same, "--minutes", "0.1", "--only", "raw,presaved", "--json", str(report)
    )
    assert compared.returncode == 0, compared.stdout
    content = json.loads(report.read_text())
    assert (content["a"], content["b"]) == (commits.base, commits.same)
    assert [(each["strategy"], each["figure"]) for each in content["figures"]] == [
        (strategy, metric) for strategy in ("raw", "presaved") for metric in ("etl", "wall")
    ]
    assert {each["verdict"] for each in content["figures"]} <= {"same", "not clear"}
    assert all(each["pairs"] >= MIN_ROUNDS and each["low"] < each["high"] for each in content["figures"])
    assert "cannot be told from noise" in compared.stdout


@pytest.mark.alone
def test_a_commit_that_loads_more_slowly_is_found(commits: Commits, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ("--minutes", "0.1", "--only", "raw", "--json", str(report))
    compared = commits.scratch.run(COMPARE, commits.same, commits.slow, *options)
    assert compared.returncode == 1, compared.stdout
    assert "B is slower in ETL alone of raw" in compared.stdout
    (loading,) = (each for each in json.loads(report.read_text())["figures"] if each["figure"] == "etl")
    assert loading["verdict"] == "slower"
    assert loading["ratio"] == pytest.approx(1.6, abs=0.3)


def test_commits_that_load_other_batches_are_not_compared(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(commits.scratch.data))
    same, other = (extract(each, commits.scratch.folder) for each in (commits.same, commits.other))
    with pytest.raises(
        DifferentWork,
        match=f"the digest of the batches is .* in raw of {other.sha[:8]} and .* in raw of {same.sha[:8]}",
    ):
        compare(same, other, 6.0, 0.01, Console(), ["raw"])


def test_the_files_are_those_of_the_commit_and_are_kept(commits: Commits) -> None:
    first = extract(commits.same, commits.scratch.folder)
    assert first.folder == commits.scratch.folder / ".asv/commits" / commits.same
    assert (first.folder / "etl/loading/batch_plan.py").read_text() == commits.scratch.git(
        "show", f"{commits.same}:etl/loading/batch_plan.py"
    )
    assert not (first.folder / "benchmarks").exists()
    before = (first.folder / "etl/__init__.py").stat().st_ino
    again = extract("main~2", commits.scratch.folder)
    assert (again.folder, str(again)) == (first.folder, f"main~2 ({commits.same[:8]})")
    assert (again.folder / "etl/__init__.py").stat().st_ino == before


def test_a_name_that_is_no_commit_is_refused(commits: Commits, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nowhere", "--help", f"{commits.base}:README.md", "0" * 40):
        with pytest.raises(NoSuchCommit, match="is not a commit of"):
            extract(name, commits.scratch.folder)
    assert main(["nowhere", "HEAD"]) == 2
    assert capsys.readouterr().err.startswith("'nowhere' is not a commit of")


def test_an_unknown_commit_and_a_missing_git_take_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert history_table.main(["nowhere"]) == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (main(["HEAD", "HEAD"]), history_table.main([])) == (2, 2)
    unknown, *without_git = capsys.readouterr().err.splitlines()
    assert unknown.startswith("'nowhere' is not a commit of")
    assert [line.partition(":")[0] for line in without_git] == ["git cannot be run"] * 2


def test_a_commit_without_the_packages_is_refused(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, tmp_path)
    scratch.git("init", "--quiet")
    (tmp_path / "README.md").write_text("A project.\n")
    scratch.commit("Before the packages")
    with pytest.raises(NoSuchCommit, match="commit HEAD has no etl and presave"):
        extract("HEAD", tmp_path)
    assert not any(tmp_path.glob(".asv/commits/*"))


def test_a_python_without_filters_of_archives_extracts_the_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = Scratch(tmp_path, tmp_path)
    scratch.git("init", "--quiet")
    for package in ("etl", "presave"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"name = {package!r}\n")
    scratch.commit("Only the packages")
    extractall = tarfile.TarFile.extractall
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda files, path: extractall(files, path))
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(lambda file, _: file), raising=False)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert (extract("HEAD", tmp_path).folder / "presave/__init__.py").read_text() == "name = 'presave'\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("No space left on device"), "No space left on device\n"),
        (ZeroDivisionError("division by zero"), "Traceback (most recent call last)"),
    ],
)
def test_an_error_is_not_taken_for_a_commit_that_is_slower(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("benchmarks.compare_commits.__main__.extract", fail)
    assert main(["HEAD", "HEAD"]) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--only", "raw,cooked", "no strategy is called cooked"),
        ("--minutes", "6", "must be above 0 and at most 5"),
        ("--json", "nowhere/report.json", "--json: nowhere is not a folder"),
    ],
)
def test_what_cannot_be_measured_or_written_is_refused_at_once(
    option: str, value: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["HEAD", "HEAD", option, value])
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ratio", "noise", "margin", "outcome"),
    [
        (1.05, 0.005, 0.02, Outcome.SLOWER),
        (0.95, 0.005, 0.02, Outcome.FASTER),
        (1.0, 0.005, 0.02, Outcome.SAME),
        (1.02, 0.005, 0.02, Outcome.OPEN),
        (0.98, 0.005, 0.02, Outcome.OPEN),
        (1.05, 0.1, 0.02, Outcome.OPEN),
        (1.05, 0.005, 0.08, Outcome.SAME),
    ],
)
def test_a_change_is_reported_only_if_the_interval_is_outside_the_equivalence_margin(
    ratio: float, noise: float, margin: float, outcome: Outcome
) -> None:
    draw = random.Random(0)
    judged = judge([math.log(ratio) + draw.gauss(0, noise) for _ in range(20)], 1.0, ratio, margin)
    assert judged.outcome is outcome
    assert judged.change.estimate == pytest.approx(ratio, abs=noise)


def test_too_few_pairs_give_no_verdict_and_the_minimum_number_of_rounds_does() -> None:
    few = judge([0.5] * 12, 1.0, 1.6)
    assert (few.change.low, few.change.high, few.outcome) == (None, None, Outcome.OPEN)
    assert few.change.estimate == pytest.approx(math.exp(0.5))
    assert judge([0.5] * MIN_ROUNDS, 1.0, 1.6).outcome is Outcome.SLOWER


def verdict(ratio: float, outcome: Outcome, low: float | None = 0.9) -> Verdict:
    return Verdict(1.0, ratio, Interval(ratio, low, 1.5, 14), outcome)


def test_the_summary_says_which_metrics_have_changed_and_what_is_not_clear() -> None:
    slower, unclear = verdict(1.1, Outcome.SLOWER), verdict(1.0, Outcome.OPEN, low=None)
    said = summary({("raw", "etl"): slower, ("presaved", "wall"): unclear})
    assert said.startswith("B is slower in ETL alone of raw; 1 of 2 metrics are not clear")
    assert summary({("raw", "etl"): verdict(1.0, Outcome.SAME)}) == "no change shown."
    commit = Commit("HEAD", "0" * 40, Path("nowhere"))
    (metric,) = as_json(commit, commit, {("raw", "etl"): unclear}, 0.02)["figures"]
    assert (metric["low"], metric["high"], metric["verdict"]) == (None, 1.5, "not clear")


class Busy:
    """A loader that takes CPU time and measures how much."""

    granularity = "record"
    seconds = 0.0

    def load(self, indices: np.ndarray, *, finished: int) -> tuple[list[int], int]:
        started = thread_time()
        while thread_time() < started + 0.005:
            pass
        self.seconds = thread_time() - started
        return indices.tolist(), finished


def test_a_slow_loader_does_the_same_and_takes_longer_by_a_share() -> None:
    busy = Busy()
    slow = SlowLoader(busy, 1.5)
    assert slow.granularity == "record"
    started = thread_time()
    assert slow.load(np.arange(3), finished=7) == ([0, 1, 2], 7)
    assert thread_time() - started >= 2.5 * busy.seconds


@pytest.mark.parametrize("strategy", sorted(WORKS))
def test_a_slow_loader_can_replace_the_loader_of_every_strategy(strategy: str, tmp_path: Path) -> None:
    def loaded(wrap: Callable[[Any], Any] | None) -> str:
        digest = BatchDigest()
        with make_iterator(WORKS[strategy].cell, data, wrap) as iterator:
            for batch in iterator:
                digest.update(batch)
        return digest.hexdigest()

    made = []

    def wrap(loader: Any) -> SlowLoader:
        made.append(SlowLoader(loader, 0.1))
        return made[-1]

    data = make_data(WORKS[strategy], tmp_path)
    assert loaded(wrap) == loaded(None)
    assert len(made) == 1


def test_loading_and_compute_overlap_only_in_the_wall_time_of_strategies_that_load_ahead() -> None:
    found = {(strategy, metric) for strategy in WORKS for metric in METRICS if overlaps(strategy, metric)}
    assert found == {("async-raw", "wall"), ("async-presaved", "wall")}


def test_a_study_depends_on_all_files_that_its_comparisons_use() -> None:
    files = {name.removeprefix("benchmarks/") for name in METHOD_FILES}
    folder = Path(benchmarks.__file__).parent
    read = [*(folder / "compare_commits").glob("*.py"), *(folder / name for name in files if name.endswith(".py"))]
    shared = {
        name
        for path in read
        for name in re.findall(r"^\s*from benchmarks\.(\w+) import", path.read_text(), re.MULTILINE)
    }
    # The console only prints.
    assert {f"{name}.py" for name in shared - {"console"}} <= files
