"""The recommendation claims only what the metrics show; notes say what a reader must know to read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import psutil
import pytest

from etl.comparison.judge.recommendation import make_notes, recommend
from etl.comparison.judge.report import Check, Presaving, StrategyResult
from etl.comparison.judge.results import Measurements
from etl.comparison.request.answers import CheckedEpoch, WrittenStore
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.epoch_content import EpochContent
from etl.measuring.clock import Split
from etl.measuring.statistics import Interval
from etl.runtime import Audit
from tests import comparison_reports
from tests.comparison_reports import strategy
from tests.comparison_workloads import TRIED, make_measurements, make_sample, make_workload

# Of the wall times of two strategies, by their names.
Ratios = dict[tuple[str, str], Interval]


def result(name: str, wall: float, compute: float, ratio: Interval | None = None, **more: object) -> StrategyResult:
    """Return the result of an epoch of `wall` seconds that is either `compute` or stall."""
    made = strategy(name, wall, compute, 0.0, wall - compute, etl=1.0)
    return replace(made, ratio=ratio, **more)  # type: ignore[arg-type]


def sure(median: float) -> Interval:
    return Interval(median, median * 0.98, median * 1.02, 9)


def unsure(median: float) -> Interval:
    return Interval(median, median * 0.8, median * 1.2, 9)


def recommended(
    results: list[StrategyResult],
    ratios: Ratios | None = None,
    broken_by: Sequence[str] = (),
    compute: str = "training",
) -> list[str]:
    """Return the recommendation; ratios that are not given are certain."""
    check = Check("samples", "Same samples", not broken_by, "seen", dict.fromkeys(broken_by, "other pixels"))
    report = replace(
        comparison_reports.photographs(), strategies=results, checks=[check], settings={"compute": compute}
    )
    walls = {each.name: each.parts.wall_seconds for each in results}
    certain = {(one, other): sure(walls[one] / walls[other]) for one, other in permutations(walls, 2)}
    return recommend(report, {**certain, **(ratios or {})}, "photographs/")


def test_the_fastest_is_recommended_with_its_interval_and_what_it_costs() -> None:
    raw = result("raw", 10.0, 4.0)
    saved = result("presaved", 5.0, 4.0, sure(0.5), presaving=Presaving(12.0, 3 * 10**8))
    first, cost, bound = recommended([raw, saved])
    assert first.startswith("Use presaved: an epoch takes 5.00 s instead of 10.0 s with raw")
    assert "0.50 times as long (95% interval 0.49 to 0.51)" in first
    assert cost == "Presaving after resize takes 12.0 s and 300 MB once, which pays off after 2.4 epochs."
    assert bound == "With presaved training waits for data 20% of the time."


@pytest.mark.parametrize(
    ("wall", "work", "said"),
    [
        (5.0, "inference", "inference waits for data 20% of the time."),
        (10.0, "training", "training still waits for data 60% of the time: loading is the limit."),
        (4.04, "training", "training waits for data 1.0% of the time: compute is the limit, and faster loading would"),
    ],
)
def test_one_strategy_alone_is_described_with_what_bounds_it(wall: float, work: str, said: str) -> None:
    only, bound = recommended([result("raw", wall, 4.0)], compute=work)
    assert only.startswith("Only raw was compared: an epoch takes ")
    assert bound.startswith(f"With raw {said}")


def test_compute_bound_means_that_all_are_within_2_percent_and_nothing_waits() -> None:
    only = recommended([result("raw", 10.1, 10.0), result("async-raw", 10.0, 9.99), result("presaved", 10.05, 10.0)])
    assert len(only) == 1
    assert only[0].startswith("Compute-bound: all strategies are within 2% of each other")
    assert "how photographs/ is loaded does not matter here; stay with raw, the simplest" in only[0]


@pytest.mark.parametrize(
    ("simple", "other"), combinations(("raw", "async-raw", "presaved", "async-presaved", "process-raw"), 2)
)
def test_workers_a_store_and_processes_each_make_a_strategy_less_simple(simple: str, other: str) -> None:
    (only,) = recommended([result(other, 10.0, 10.0), result(simple, 10.0, 10.0)])
    assert f"stay with {simple}, the simplest" in only


def test_workers_that_tuning_has_made_processes_count_as_processes() -> None:
    tuned = result("async-raw", 10.0, 10.0, settings={"workers": "process"})
    (only,) = recommended([tuned, result("presaved", 10.0, 10.0)])
    assert "stay with presaved, the simplest" in only


def test_all_within_2_percent_while_training_waits_is_not_called_compute_bound() -> None:
    (only,) = recommended([result("raw", 10.1, 2.0), result("async-raw", 10.0, 2.0)])
    assert only.startswith("No gain: all strategies are within 2%")


def test_a_disqualified_strategy_is_never_recommended_however_fast() -> None:
    raw, ahead = result("raw", 10.0, 4.0), result("async-raw", 8.0, 4.0, sure(0.8))
    cheat = result("presaved", 1.0, 0.5, sure(0.1))
    sentences = recommended([raw, ahead, cheat], broken_by=["presaved"])
    assert sentences[0].startswith("Use async-raw")
    assert "presaved" not in " ".join(sentences)


def test_without_a_valid_reference_the_choice_is_not_compared_with_it() -> None:
    others = [result("async-raw", 8.0, 4.0, sure(0.8)), result("process-raw", 12.0, 4.0)]
    first, *_ = recommended([result("raw", 10.0, 4.0), *others], broken_by=["raw"])
    assert first == "Use async-raw: an epoch takes 8.00 s."


def test_nothing_is_recommended_if_every_strategy_broke_a_rule() -> None:
    broken = ["raw", "presaved"]
    assert recommended([result(name, 5.0, 2.0) for name in broken], broken_by=broken) == [
        "Nothing can be recommended: every strategy broke a rule of fairness (see below)."
    ]


def test_the_simpler_one_is_preferred_if_no_difference_is_shown_and_they_are_said_to_be_equal() -> None:
    raw = result("raw", 10.0, 4.0)
    ahead, saved = result("async-raw", 5.2, 4.0, sure(0.52)), result("presaved", 5.0, 4.0, sure(0.5))
    first, *others = recommended([raw, ahead, saved], {("presaved", "async-raw"): Interval(0.96, 0.9, 1.02, 9)})
    assert first.startswith("Use async-raw: ")
    assert first.endswith(
        "presaved takes equally long, as far as this comparison can tell: 0.96 times as long (0.90 to 1.02)."
    )
    assert not any("Presaving" in sentence for sentence in others)


def test_the_simpler_one_is_not_preferred_if_it_was_shown_to_be_slower() -> None:
    raw = result("raw", 10.0, 4.0)
    ahead, saved = result("async-raw", 5.5, 4.0, sure(0.55)), result("presaved", 5.0, 4.0, sure(0.5))
    assert recommended([raw, ahead, saved])[0].startswith("Use presaved: ")


def test_a_small_but_certain_difference_counts_unless_it_is_negligible() -> None:
    raw = result("raw", 10.0, 4.0)
    ahead, saved = result("async-raw", 5.15, 4.0, sure(0.515)), result("presaved", 5.0, 4.0, sure(0.5))
    certain, negligible = Interval(0.97, 0.96, 0.98, 9), Interval(0.985, 0.98, 0.99, 9)
    assert recommended([raw, ahead, saved], {("presaved", "async-raw"): certain})[0].startswith("Use presaved: ")
    first, *_ = recommended([raw, ahead, saved], {("presaved", "async-raw"): negligible})
    assert first.startswith("Use async-raw: ")
    assert first.endswith("presaved has not been shown to be faster by more than 2%.")


def test_the_simplest_is_kept_if_no_strategy_is_shown_to_be_faster() -> None:
    raw, ahead = result("raw", 10.0, 4.0), result("async-raw", 9.5, 4.0, unsure(0.95))
    first, *_ = recommended([raw, ahead], {("async-raw", "raw"): unsure(0.95)})
    assert first.startswith("Stay with raw: an epoch takes 10.0 s, and no strategy has been shown to be faster.")
    assert first.endswith(
        "async-raw takes equally long, as far as this comparison can tell: 0.95 times as long (0.76 to 1.14)."
    )


def test_what_is_recommended_was_shown_to_be_faster_than_all_that_is_simpler() -> None:
    # A store is faster than loading ahead without one for certain, but not than the plain strategy.
    raw, ahead, saved = result("raw", 5.2, 4.0), result("async-raw", 6.0, 4.0, sure(1.15)), result("presaved", 5.0, 4.0)
    first, *_ = recommended([raw, ahead, saved], {("presaved", "raw"): unsure(0.96)})
    assert first.startswith("Stay with raw: ")


def test_none_that_was_shown_to_be_slower_than_the_fastest_is_recommended_beside_it() -> None:
    # Loading ahead is the fastest, too noisy to be compared with the plain strategy, but not with the store.
    noisy = Interval(0.5, 0.2, 1.2, 9)
    raw, ahead = result("raw", 10.0, 4.0), result("async-raw", 5.0, 4.0, noisy)
    saved = result("presaved", 6.0, 4.0, sure(0.6))
    first, *_ = recommended([raw, ahead, saved], {("async-raw", "raw"): noisy})
    assert first.startswith("No difference from raw has been shown: with async-raw an epoch takes 5.00 s instead of")
    assert "presaved" not in first


def test_too_few_rounds_are_said_to_be_too_few() -> None:
    few = Interval(0.5, None, None, 3)
    raw, ahead = result("raw", 10.0, 4.0), result("async-raw", 5.0, 4.0, few)
    first, *_ = recommended([raw, ahead], {("async-raw", "raw"): few})
    assert "A recommendation needs 6 rounds; completed: 3." in first


def test_the_smaller_of_two_stores_is_simpler() -> None:
    large = result("presaved", 5.0, 4.0, presaving=Presaving(1.0, 900))
    small = result("presaved", 5.05, 4.0, sure(1.01), presaving=Presaving(1.0, 300))
    (only,) = recommended([replace(large, name="presaved:npy"), replace(small, name="presaved:hdf5")])
    assert "stay with presaved:hdf5" in only


@pytest.mark.parametrize(
    ("write_seconds", "workers", "said"),
    [
        (2.0, 9.0, "which pays off within the first epoch."),
        (8.0, 9.0, "which pays off after 2.0 epochs."),
        (8.0, 4.95, "which does not pay off against the fastest strategy without a store."),
    ],
)
def test_break_even_is_given_if_a_strategy_needs_no_store(write_seconds: float, workers: float, said: str) -> None:
    raw, ahead = result("raw", 10.0, 4.0), result("process-raw", workers, 4.0, sure(workers / 10))
    saved = result("presaved", 5.0, 4.0, sure(0.5), presaving=Presaving(write_seconds, 300))
    assert recommended([raw, ahead, saved])[1].endswith(said)


def test_if_every_strategy_needs_a_store_no_break_even_is_given() -> None:
    plain = result("presaved", 10.0, 4.0, presaving=Presaving(1.0, 300))
    ahead = result("async-presaved", 5.0, 4.0, sure(0.5), presaving=Presaving(1.0, 300))
    assert recommended([plain, ahead])[1] == "Presaving after resize takes 1.00 s and 300 B once."


RAW, SAVED = Candidate("raw"), Candidate("presaved", "npy", "read")


def measured(folder: Path, nbytes: float = 1e4, cache: str = "warm") -> Measurements:
    """Return measurements of `raw` and `presaved` on all of 200 records, with a store of `nbytes`."""
    workload = make_workload(folder, strategies=("raw", "presaved", "process-raw"), cache=cache)
    written = {SAVED: WrittenStore(1.0, int(nbytes), 200)}
    return make_measurements(workload, {RAW: {0: make_sample()}, SAVED: {0: make_sample()}}, written=written)


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({}, []),
        ({"failed": {Candidate("process-raw"): "killed by signal 9"}}, ["process-raw failed: killed by signal 9"]),
        (
            {"samples": {SAVED: {0: make_sample()}}, "failed": {RAW: "killed by signal 9"}},
            ["raw failed: killed by signal 9", "presaved is the reference instead of raw."],
        ),
        (
            {"rounds": 7, "end_reason": "it was killed"},
            ["The comparison ended after round 7, since the next one failed: it was killed"],
        ),
    ],
)
def test_what_could_not_be_measured_is_noted(tmp_path: Path, changes: dict[str, Any], notes: list[str]) -> None:
    assert make_notes(replace(measured(tmp_path), **changes)) == notes


def test_a_setting_without_effect_is_noted_with_its_strategy_and_what_to_do(tmp_path: Path) -> None:
    alarm = "heap policy retain was asked for, and freed memory is given back: remove that call."
    inert = Audit("heap", "retain", "0 policies that retain", "a block is given back", alarm)
    works = Audit("gc", "off", "automatic collection off", "no collections")
    samples = {RAW: {0: make_sample(runtime=[inert, works]), 1: make_sample()}}
    assert make_notes(replace(measured(tmp_path), samples=samples)) == [f"raw: a setting had no effect: {alarm}"]


def test_scaled_metrics_are_noted_with_how_many_records_were_measured(tmp_path: Path) -> None:
    made = measured(tmp_path)
    made = replace(made, work=replace(made.work, records=60))
    (note,) = make_notes(made)
    assert note.startswith("Measured on 60 of 200 records, chosen at random. Times are scaled to all")


MINE = Candidate("my_loaders:load", label="mine")
CHECKED = CheckedEpoch(EpochContent([], [], [], [], ""), None, None, None, 0, 0, "", 0)


def notes_on_mine(folder: Path, records: int, gets_all: bool = False, **sample: Any) -> list[str]:
    """Return the notes on a user's loader of which so many of 200 records were measured."""
    workload = make_workload(folder, strategies=("mine=my_loaders:load",))
    workload.tried[MINE], workload.requested[MINE] = TRIED, {"source"}
    made = make_measurements(workload, {MINE: {0: make_sample(**sample)}}, checks={MINE: CHECKED})
    work = replace(made.work, records=records, gets_all={MINE} if gets_all else set())
    return [note for note in make_notes(replace(made, work=work)) if note.startswith("mine")]


def test_first_batches_that_take_much_longer_may_hide_that_all_records_are_loaded(tmp_path: Path) -> None:
    slow = Split(0.5, 0.09)  # of 10 batches, one of them in the start-up
    (note,) = notes_on_mine(tmp_path, 60, wall=slow)
    assert note.startswith("mine: its first batches took 50 times as long as the others, which counts once.")
    assert note.endswith("compare with --check-epoch.")
    assert notes_on_mine(tmp_path, 200, wall=slow) == []  # nothing is scaled
    assert notes_on_mine(tmp_path, 60, gets_all=True, wall=slow) == []  # all that there are have been loaded
    assert notes_on_mine(tmp_path, 60, wall=Split(0.04, 0.09)) == []
    # Workers that start take as long, but little of the epoch.
    assert notes_on_mine(tmp_path, 60, batches=1000, wall=Split(0.05, 0.999)) == []
    assert notes_on_mine(tmp_path, 60, batches=1, wall=Split(0.5, 0.0)) == []


@pytest.mark.parametrize(("stored", "is_noted"), [(100, True), (200, False)])
def test_a_store_that_memory_cannot_hold_is_noted_scaled_to_the_whole_source_from_its_own_records(
    stored: int, is_noted: bool, tmp_path: Path
) -> None:
    memory = psutil.virtual_memory().total
    made = measured(tmp_path, nbytes=0.3 * memory)
    assert make_notes(made) == []
    written = {SAVED: replace(made.written[SAVED], records=stored)}
    notes = make_notes(replace(made, work=replace(made.work, records=100), written=written))
    found = [note.startswith("The store of presaved takes") and "--cache cold" in note for note in notes]
    assert any(found) == is_noted


def test_a_cold_comparison_has_read_from_the_disk_anyhow(tmp_path: Path) -> None:
    memory = psutil.virtual_memory().total
    assert len(make_notes(measured(tmp_path, nbytes=memory))) == 1
    assert make_notes(measured(tmp_path, nbytes=memory, cache="cold")) == []


def test_the_reference_is_the_first_candidate_with_samples(tmp_path: Path) -> None:
    made = measured(tmp_path)
    assert made.compared == [RAW, SAVED]
    assert replace(made, samples={RAW: {}, SAVED: {0: {}}}).compared == [SAVED]
