"""Notes say what a reader must know beside the figures, and nothing where there is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil

from etl.comparison.recommendation import make_notes
from etl.comparison.results import Measurements
from etl.comparison.samples import WrittenStore
from etl.comparison.settings import Candidate
from etl.runtime import Audit
from tests.comparison_workloads import make_profile, make_sample, make_workload

RAW, SAVED = Candidate("raw"), Candidate("presaved", "npy", "read")


def measured(folder: Path, nbytes: float = 1e4, cache: str = "warm") -> Measurements:
    """All of 200 records, `raw` and `presaved`, whose store has `nbytes`."""
    return Measurements(
        workload=make_workload(folder, strategies=("raw", "presaved", "process-raw"), cache=cache),
        started_at="2025-11-21T17:16:04+00:00",
        seconds=60.0,
        affinity=[0],
        memory_nbytes=10**9,
        profile=make_profile(),
        predictions={},
        trials={},
        writing={("npy", "read"): WrittenStore(1.0, int(nbytes), 200)},
        checks={},
        failed={},
        samples={RAW: {0: make_sample()}, SAVED: {0: make_sample()}},
        loads={},
        rounds=1,
        stopped_early=False,
        no_server="",
        timelines=[],
    )


def test_nothing_is_noted_of_a_source_that_was_measured_whole(tmp_path: Path) -> None:
    assert make_notes(measured(tmp_path)) == []


def test_what_could_not_be_run_is_noted_with_its_reason(tmp_path: Path) -> None:
    found = make_notes(replace(measured(tmp_path), failed={Candidate("process-raw"): "killed by signal 9"}))
    assert found == ["process-raw failed: killed by signal 9"]


def test_a_setting_without_effect_is_noted_with_its_strategy_and_what_to_do(tmp_path: Path) -> None:
    alarm = "heap policy retain was asked for, and freed memory is given back: remove that call."
    inert = Audit("heap", "retain", "0 policies that retain", "a block is given back", alarm)
    works = Audit("gc", "off", "automatic collection off", "no collections")
    samples = {RAW: {0: make_sample(runtime=[inert, works]), 1: make_sample()}}
    assert make_notes(replace(measured(tmp_path), samples=samples)) == [f"raw: a setting had no effect: {alarm}"]


def test_a_different_reference_than_requested_is_noted(tmp_path: Path) -> None:
    made = measured(tmp_path)
    made = replace(made, samples={SAVED: made.samples[SAVED]}, failed={RAW: "killed by signal 9"})
    assert make_notes(made) == ["raw failed: killed by signal 9", "presaved is the reference instead of raw."]


def test_a_round_that_could_not_begin_is_noted(tmp_path: Path) -> None:
    found = make_notes(replace(measured(tmp_path), rounds=7, no_server="it was killed by signal 9"))
    assert found == ["Ended after 7 rounds, since another could not begin: it was killed by signal 9"]


def test_scaled_metrics_are_noted_with_how_many_records_were_measured(tmp_path: Path) -> None:
    made = measured(tmp_path)
    made.workload.select(60)
    (note,) = make_notes(made)
    assert note.startswith("Measured on 60 of 200 records, chosen at random, and scaled")


def test_a_store_that_memory_cannot_hold_is_noted_scaled_to_the_whole_source(tmp_path: Path) -> None:
    memory = psutil.virtual_memory().total
    made = measured(tmp_path, nbytes=0.3 * memory)
    assert make_notes(made) == []
    made.workload.select(100)
    assert any(note.startswith("The store of presaved takes") and "--cache cold" in note for note in make_notes(made))


def test_a_cold_comparison_has_read_from_the_disk_anyhow(tmp_path: Path) -> None:
    memory = psutil.virtual_memory().total
    assert len(make_notes(measured(tmp_path, nbytes=memory))) == 1
    assert make_notes(measured(tmp_path, nbytes=memory, cache="cold")) == []


def test_the_reference_is_the_first_candidate_with_samples(tmp_path: Path) -> None:
    made = measured(tmp_path)
    assert made.compared == [RAW, SAVED]
    assert replace(made, samples={RAW: {}, SAVED: {0: {}}}).compared == [SAVED]
    assert made.written(RAW) is None
