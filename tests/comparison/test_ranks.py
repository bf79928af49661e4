"""Comparisons on several ranks: each loads and computes its part, at the same time as the others."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etl.comparison.compare import run_comparison
from etl.comparison.judge.rank_results import RankResult, describe_straggler
from etl.comparison.request.answers import CheckedEpoch
from etl.comparison.request.epoch_content import EpochContent, Signatures
from etl.comparison.request.settings import Settings
from etl.comparison.run import measuring_processes as processes_module
from etl.comparison.run.joined_ranks import join_checks
from etl.comparison.run.schedule import available_records
from etl.comparison.show.report import Report
from etl.measuring.clock import EpochTimes
from etl.measuring.joined_samples import RanksDifferError, _end_together, join_samples
from etl.measuring.ranks import cpus_of_rank
from etl.measuring.sample import Sample, StepTimes
from tests.comparison_workloads import broken_rules, make_sample, make_workload, write_table

LOADERS = Path(__file__).with_name("rank_loaders.py")
BATCH_SIZE, RANKS = 10, 2


def compare(folder: Path, *strategies: str, **chosen: Any) -> Report:
    """Compare on a table of 107 records, of which the ranks can share 100."""
    shutil.copy(LOADERS, folder / "my_loaders.py")
    settings = Settings(
        source=str(write_table(folder, 107)),
        strategies=strategies,
        table_options={"label": "kind"},
        batch_size=BATCH_SIZE,
        ranks=RANKS,
        rounds=1,
        search=(str(folder),),
        **chosen,
    )
    return run_comparison(settings)


def mine(*names: str) -> list[str]:
    return [f"{name.lower()}=my_loaders:{name}" for name in names]


@pytest.mark.slow
def test_all_strategies_are_measured_on_all_ranks_and_the_straggler_is_named(tmp_path: Path) -> None:
    chosen = ("raw", "async-raw", "presaved", "process-raw", *mine("Divided", "Slow"))
    report = compare(tmp_path, *chosen, compute="simulated:2ms")
    results = {each.name: each for each in report.strategies}
    assert list(results) == ["raw", "async-raw", "presaved", "process-raw", "divided", "slow"]
    assert report.measured_records == 100
    for name, each in results.items():
        assert broken_rules(each.disqualified) == [], name
        assert [rank.rank for rank in each.ranks] == [0, 1]
        assert each.measured_records == 100
        assert each.parts.wall_seconds == pytest.approx(max(rank.wall_seconds for rank in each.ranks), rel=0.1)
        assert each.peak_memory_nbytes < sum(rank.peak_memory_nbytes for rank in each.ranks)
    assert {results[name].sameness.level for name in ("async-raw", "presaved", "process-raw")} == {"identical"}  # type: ignore[union-attr]
    assert results["divided"].sameness.level == "same records"  # type: ignore[union-attr]
    slow = results["slow"]
    assert slow.straggler.startswith("Rank 1 was the straggler: it began 100% of the steps last")
    assert "it waited longer for batches" in slow.straggler
    waited = slow.ranks[0].rank_wait_seconds
    assert waited is not None
    assert waited > 0.5 * slow.parts.wall_seconds
    assert slow.parts.stall_seconds > 0.5 * slow.parts.wall_seconds  # of the straggler
    assert slow.straggler in " ".join(str(report).split())


@pytest.mark.slow
def test_what_one_rank_does_wrong_costs_one_sentence_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "MIN_FOREIGN_SECONDS", 25.0)
    monkeypatch.setattr(processes_module, "FOREIGN_BUDGETS", 0.0)
    wrong = mine("Same", "Fewer", "Raises", "Dies", "Hangs")
    report = compare(tmp_path, "raw", *wrong, compute="simulated:1ms")
    places = {
        line.rpartition(": ")[2]: f"my_loaders.py:{number}"
        for number, line in enumerate(LOADERS.read_text().splitlines(), start=1)
        if "# place" in line
    }
    checked = "when its epoch was checked"
    expected = {
        "same": f"each of its ranks loads the same 100 records: divide them by `rank` and `world_size` .*, {checked}",
        "fewer": rf"its ranks have different numbers of batches \(rank 0: 5, rank 1: 4\), so that .*, {checked}",
        "raises": rf"rank 1 of 2: ValueError: 3.jpg is no image, at {places['Raises']} \(before\), {checked}",
        "dies": rf"rank 1 of 2: its process was killed by signal 9 \(out of memory\?\), {checked}",
        "hangs": (
            rf"rank 1 of 2: its process gave no answer for 25 s, at {places['Hangs']} \(before\); a higher --budget "
            "allows more time, in round 1"
        ),
    }
    for name, sentence in expected.items():
        (note,) = [each for each in report.notes if each.startswith(f"{name} failed: ")]
        assert re.fullmatch(f"{name} failed: {sentence}", note), note
    assert [each.name for each in report.strategies] == ["raw"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{"model": "mlp", "backend": "cpu"}, {"step": "my_loaders:make_step"}])
def test_gradients_are_averaged_by_the_model_and_by_a_step_of_the_user(tmp_path: Path, chosen: dict[str, str]) -> None:
    report = compare(tmp_path, "raw", *mine("Divided"), **chosen)
    held = {check.rule: check.held for check in report.checks}
    assert held["compute"]
    assert held["samples"]
    if "model" in chosen:  # of a user's step, it is only seen from times
        assert all(rank.rank_wait_seconds is not None for each in report.strategies for rank in each.ranks)


def test_records_are_whole_steps_of_all_ranks(tmp_path: Path) -> None:
    assert available_records(make_workload(tmp_path, 107, ranks=2)) == 100
    with pytest.raises(ValueError, match="one step of all ranks takes 200 records, and there are 107: compare with"):
        available_records(make_workload(tmp_path, 107, ranks=2, batch_size=100))


def test_cpus_are_divided_and_shared_only_if_there_are_fewer_than_ranks() -> None:
    assert [cpus_of_rank([3, 4, 5, 6], rank, 2) for rank in range(2)] == [[3, 4], [5, 6]]
    assert [cpus_of_rank([3, 4, 5], rank, 2) for rank in range(2)] == [[3], [4, 5]]
    assert [cpus_of_rank([0, 1], rank, 4) for rank in range(4)] == [[0], [0], [1], [1]]


def rank_sample(loads: list[float], steps: list[float], others: list[float]) -> Sample:
    """Return the sample of a rank that needs these seconds for its batches and steps; each step ends with the others'.

    Parameters
    ----------
    loads, steps : list of float
        Seconds to load each batch and of each step.
    others : list of float
        When the other rank is ready for each step.
    """
    now, asked, loaded, began, done = 0.0, [], [], [], []
    for load, step, other in zip(loads, steps, others, strict=True):
        asked.append(now)
        loaded.append(now + load)
        began.append(loaded[-1])
        now = max(began[-1], other) + step
        done.append(now)
    times = EpochTimes(0.0, *map(np.array, (asked, loaded, began, done)), now, now, now, 10 * len(loads))
    metrics = times.metrics
    sample = make_sample(cpu_seconds=1.0, read_nbytes=7, other_processes=0.5)
    return replace(sample, epoch=metrics, steps=StepTimes(began, done))


# Of a sample of several ranks, that of the one that held the others up.
OF_THE_STRAGGLER = {"stalls", "compute_alone", "harness", "peak_memory", "steal", "frequencies", "device", "timeline"}
OF_THE_STRAGGLER |= {"etl_cpu_seconds", "cached_alone", "loading_waits", "transfer", "walls"}
OF_THE_FIRST = {"device", "compute_seconds"}


@pytest.mark.parametrize(
    ("join", "kind", "of_one"),
    [(join_samples, Sample, OF_THE_STRAGGLER), (join_checks, CheckedEpoch, OF_THE_FIRST)],
)
def test_what_is_measured_of_each_rank_is_joined_or_that_of_one_on_purpose(
    join: Any, kind: Any, of_one: set[str]
) -> None:
    [returned] = [each.value for each in ast.walk(ast.parse(inspect.getsource(join))) if isinstance(each, ast.Return)]
    assert isinstance(returned, ast.Call)
    assert {each.arg for each in returned.keywords} == {each.name for each in fields(kind)} - of_one


def test_the_straggler_is_the_rank_that_the_others_wait_for() -> None:
    slow = rank_sample([0.3, 0.3], [0.1, 0.1], [0.0, 0.0])
    fast = rank_sample([0.1, 0.1], [0.1, 0.1], [0.3, 0.7])
    joined = join_samples([fast, slow])
    assert joined.epoch.stall.total == pytest.approx(0.6)  # of the slow one
    assert joined.epoch.wall.total == pytest.approx(0.8)
    assert joined.epoch.samples == 40
    assert (joined.cpu_seconds, joined.read_nbytes) == (2.0, 14)
    waits = [each.waits for each in joined.ranks]
    assert [each.total for each in waits if each is not None] == pytest.approx([0.4, 0.0])
    assert [each.last for each in joined.ranks] == [0, 2]
    assert joined.steps is None


def test_the_first_batch_of_a_rank_is_a_mean_of_its_epochs_like_its_stall() -> None:
    stalls = [[0.3, 0.1], [0.1, 0.2]]
    ranks = [replace(rank_sample([0.2, 0.1], [0.1, 0.1], [0.0, 0.0]), stalls=stalls) for _ in range(2)]
    assert [each.first_batch for each in join_samples(ranks).ranks] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(("cpus", "share"), [([1, 2], 0.25), ([2, 3], 0.5)])
def test_only_ranks_that_share_its_cpus_are_taken_off_what_others_used(cpus: list[int], share: float) -> None:
    straggler = rank_sample([0.3, 0.3], [0.1, 0.1], [0.0, 0.0])  # on CPUs 0 and 1, for 0.8 s
    other = replace(rank_sample([0.1, 0.1], [0.1, 0.1], [0.3, 0.7]), affinity=cpus, cpu_seconds=0.4)
    assert join_samples([other, straggler]).other_processes == pytest.approx(share)


def test_ranks_that_do_not_wait_have_no_straggler_but_a_slowest() -> None:
    slow = rank_sample([0.3, 0.3], [0.1, 0.1], [0.0, 0.0])
    fast = rank_sample([0.01, 0.01], [0.01, 0.01], [0.0, 0.0])
    joined = join_samples([fast, slow])
    assert [each.waits for each in joined.ranks] == [None, None]
    assert joined.epoch.wall.total == pytest.approx(0.8)


def test_the_wall_is_that_of_the_last_rank_to_end() -> None:
    straggler = rank_sample([0.3, 0.3], [0.1, 0.1], [0.0, 0.0])
    last = rank_sample([0.1, 0.1], [0.1, 0.3], [0.3, 0.7])
    joined = join_samples([straggler, last])
    assert joined.epoch.wall.total == pytest.approx(1.0)
    assert joined.epoch.stall.total + joined.epoch.compute.total == pytest.approx(1.0)


def test_whether_a_step_waits_for_other_ranks_is_seen_from_its_times() -> None:
    began = np.array([[0.0, 1.0], [0.3, 1.2]])
    assert _end_together(began, np.array([[0.8, 1.8], [0.8, 1.8]]))
    assert not _end_together(began, np.array([[0.5, 1.5], [0.8, 1.7]]))  # each takes half a second
    assert not _end_together(began, np.array([[0.2, 1.1], [0.5, 1.3]]))  # one ends before the other begins


def test_different_numbers_of_steps_are_an_error() -> None:
    one, two = rank_sample([0.1], [0.1], [0.0]), rank_sample([0.1, 0.1], [0.1, 0.1], [0.0, 0.0])
    with pytest.raises(RanksDifferError, match="different numbers of steps: 1, 2"):
        join_samples([one, two])


def checked(folder: Path, records: list[str], mapped: dict[str, int], peak_memory: int) -> CheckedEpoch:
    path = str(folder / f"{''.join(records)}.npz")
    Signatures(np.zeros((len(records), 1)), None).save(path)
    content = EpochContent([f"batch of {records}"], records, [("float32", (4,))], [len(records)], path)
    return CheckedEpoch(content, True, 2.0, "weights", 8, 1, "", peak_memory, mapped=mapped)


def test_checks_are_joined_and_shared_memory_counts_once(tmp_path: Path) -> None:
    one = checked(tmp_path, ["a", "b"], {"store": 70, "own": 5}, 100)
    joined = join_checks([one, checked(tmp_path, ["c", "d"], {"store": 60}, 90)])
    assert joined.content.records == ["a", "b", "c", "d"]
    assert joined.content.samples == 4
    assert joined.peak_memory == 100 + 90 - 60
    assert joined.peak_memory_of_ranks == [100, 90]
    assert (joined.pages_touched, joined.pages_absent, joined.score, joined.weights) == (16, 2, 2.0, "weights")


def test_ranks_with_the_same_records_are_refused_unless_all_records_are_equal(tmp_path: Path) -> None:
    with pytest.raises(RanksDifferError, match="each of its ranks loads the same 2 records"):
        join_checks([checked(tmp_path, ["a", "b"], {}, 1), checked(tmp_path, ["b", "a"], {}, 1)])
    assert join_checks([checked(tmp_path, ["a", "a"], {}, 1)] * 2).content.samples == 4


def rank_result(rank: int, **chosen: Any) -> RankResult:
    usual = {
        "cpus": [rank],
        "wall_seconds": 10.0,
        "stall_seconds": 1.0,
        "host_wait_seconds": 1.0,
        "first_batch_seconds": 0.5,
        "compute_seconds": 5.0,
        "rank_wait_seconds": 0.0,
        "last_share": 0.5,
        "peak_memory_nbytes": 0,
    }
    return RankResult(rank=rank, **{**usual, **chosen})


@pytest.mark.parametrize(
    ("straggling", "cause"),
    [
        ({"first_batch_seconds": 4.0, "stall_seconds": 4.5}, "above all because its first batch came later"),
        ({"stall_seconds": 5.0}, "above all because it waited longer for batches"),
        ({"compute_seconds": 9.0}, "above all because its steps took longer"),
        ({}, "and no single cause stands out"),
    ],
)
def test_what_made_the_straggler_one_is_said(straggling: dict[str, float], cause: str) -> None:
    ranks = [rank_result(0, rank_wait_seconds=4.0), rank_result(1, last_share=0.9, **straggling)]
    expected = "Rank 1 was the straggler: it began 90% of the steps last, and the others waited for it 40% of the time"
    assert describe_straggler(ranks) == f"{expected}, {cause}."


def test_there_may_be_no_straggler() -> None:
    assert describe_straggler([]) == ""
    ranks = [rank_result(0, rank_wait_seconds=0.1), rank_result(1)]
    assert describe_straggler(ranks) == "No rank held the others up: they waited for each other 0.5% of the time."
    ranks = [rank_result(0, rank_wait_seconds=None), rank_result(1, rank_wait_seconds=None, wall_seconds=11.0)]
    assert describe_straggler(ranks) == ("Ranks did not wait for each other in every step; rank 1 was the slowest.")
