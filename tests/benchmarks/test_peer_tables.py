"""The tables of peers in the documents are computed from raw rounds alone, and show where a peer is ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.documents import BEGIN, DOCUMENTS, END, main, render, replace_tables, summarise
from benchmarks.peers.peer_results import (
    RESULTS,
    PeerResults,
    RawRound,
    RawRow,
    find_latest,
    load,
    save,
    to_text,
)
from benchmarks.peers.rows import OURS, PRESAVED, RAW, TASKS

ROOT = Path(__file__).parents[2]
TEXT = f"before\n\n{BEGIN}\n\nolder tables\n\n{END}\n\nafter\n"


def row(name: str, seconds: list[float], *, tuned: bool = False, **settings: object) -> RawRow:
    """Return a row with a round for each of `seconds`, of loading alone."""
    return RawRow(
        name=name,
        is_tuned=tuned,
        settings=settings,
        records=1000,
        images="reference" if name == OURS else "close (0.002)",
        disqualified=[],
        peak_memory_nbytes=250_000_000,
        prepare_seconds=None,
        disk_nbytes=None,
        note="",
        rounds=[RawRound(number, 2 * each, each, 1.5 * each) for number, each in enumerate(seconds)],
    )


def results(*rows: RawRow) -> PeerResults:
    """Return results of these rows."""
    return PeerResults(
        task=RAW,
        started_at="2026-01-02T03:04:05+00:00",
        seconds=99.0,
        commit="0123456789abcdef",
        command="python -m benchmarks.peers --tune-budget 60s",
        records=1000,
        batch_size=64,
        threads=2,
        compute="simulated:50ms",
        tune_seconds=60.0,
        machine={"processor": "a processor"},
        versions={"spdl": {"spdl": "0.8.0"}},
        missing={"FFCV, JPEG": "no wheel"},
        rows=list(rows),
    )


SAMPLE = results(
    row(OURS, [1.0, 1.1, 0.9, 1.2, 0.8, 1.0]),
    row(OURS, [0.5] * 6, tuned=True, prefetch_size=6),
    row("SPDL, simplejpeg", [2.0, 2.2, 1.8, 2.4, 1.6, 2.0]),
    row("SPDL, simplejpeg", [0.25] * 6, tuned=True, workers=3, buffer_size=2),
)


def test_a_file_has_all_that_is_in_the_results_and_a_line_for_each_row(tmp_path: Path) -> None:
    path = tmp_path / "raw-2026-01-02.json"
    path.write_text(to_text(SAMPLE))
    assert load(path) == SAMPLE
    assert sum('"is_tuned"' in line for line in path.read_text().splitlines()) == len(SAMPLE.rows)


def test_the_latest_file_of_a_task_counts(tmp_path: Path) -> None:
    assert find_latest(RAW, tmp_path) is None
    for day in ("2026-01-02", "2025-12-31"):
        (tmp_path / f"raw-{day}.json").write_text(to_text(replace(SAMPLE, started_at=day)))
    found = find_latest(RAW, tmp_path)
    assert found is not None
    assert found.started_at == "2026-01-02"
    assert find_latest(PRESAVED, tmp_path) is None


def test_a_saved_file_names_commit_versions_and_a_command_without_folders(tmp_path: Path) -> None:
    arguments = ["--python", "spdl=/somewhere/bin/python", "--save", "/elsewhere/results"]
    path = save(SAMPLE, tmp_path / "new", arguments, {"spdl": "python"}, lambda python, peer: {peer: python})
    saved = load(path)
    assert path.name == "raw-2026-01-02.json"
    assert saved.command == "python -m benchmarks.peers --python spdl=python --save results"
    assert saved.versions == {"spdl": {"spdl": "python"}}
    assert saved.rows == SAMPLE.rows


def test_a_loader_has_two_rows_which_are_compared_like_with_like() -> None:
    lines = [line for line in render([SAMPLE]).splitlines() if line.startswith("|")]
    assert lines == [
        "| decoded in every epoch | settings | images/s | of ours | waiting | CPU s per 1,000 | peak MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| SPDL, simplejpeg | as documented | 500 | 0.50 (0.50 to 0.50) | 250 | 3.00 | 250 |",
        "|  | tuned | 4,000 | **2.00 (2.00 to 2.00)** | 2,000 | 0.38 | 250 |",
        f"| {OURS} | as documented | 1,000 | 1 | 500 | 1.50 | 250 |",
        "|  | tuned | 2,000 | 1 | 1,000 | 0.75 | 250 |",
    ]


def test_the_text_names_the_run_the_tuned_settings_and_what_is_missing() -> None:
    text = " ".join(render([SAMPLE]).split())
    assert "`python -m benchmarks.peers --tune-budget 60s` at commit 0123456789abcdef on 2 CPUs (a processor)" in text
    assert "means of 6 rounds, each loader tuned for 60 s." in text
    assert f"Tuned settings: {OURS}: `prefetch_size=6`; SPDL, simplejpeg: `workers=3, buffer_size=2`." in text
    assert "Images, against this project's: reference: fair-etl; close (0.002): SPDL, simplejpeg." in text
    assert "Not in the table: FFCV, JPEG (no wheel)." in text


def test_a_loader_that_broke_a_rule_is_named_but_not_in_the_table() -> None:
    broken = replace(SAMPLE.rows[3], disqualified=["Same samples: fewer"])
    text = render([results(*SAMPLE.rows[:3], broken)])
    assert "SPDL, simplejpeg, tuned (Same samples: fewer)" in " ".join(text.split())
    assert "4,000" not in text


def test_without_tuning_there_is_one_row_each_and_no_interval_for_few_rounds() -> None:
    untuned = replace(results(row(OURS, [1.0] * 5), row("tf.data", [2.0] * 5)), tune_seconds=None)
    text = render([untuned])
    assert "| tf.data | 500 | 0.50 | 250 | 3.00 | 250 |" in text
    assert "uned" not in text


def test_the_tables_between_the_marks_are_replaced_and_checked(tmp_path: Path) -> None:
    (tmp_path / "raw-2026-01-02.json").write_text(to_text(SAMPLE))
    for name in DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    options = ["--results", str(tmp_path), "--root", str(tmp_path)]
    assert main([*options, "--check"]) == 1
    assert main(options) == 0
    for name, make in DOCUMENTS.items():
        assert (tmp_path / name).read_text() == f"before\n\n{BEGIN}\n\n{make([SAMPLE])}\n\n{END}\n\nafter\n"
    assert main([*options, "--check"]) == 0


def test_the_summary_has_a_line_for_each_peer_with_its_fastest_row_of_each_task() -> None:
    presaved = replace(
        results(
            row(OURS, [0.1] * 6),
            row("SPDL, memmap", [0.2] * 6),
            row("FFCV, channels last", [0.4] * 6),
            row("h5py", [1.0] * 6),
        ),
        task=PRESAVED,
    )
    assert [line for line in summarise([SAMPLE, presaved]).splitlines() if line.startswith("|")] == [
        "| loader | decoded in every epoch | of ours | kept as pixels, normalised | of ours |",
        "| --- | --- | --- | --- | --- |",
        "| SPDL | 4,000 | **2.00 (2.00 to 2.00)** | 5,000 | 0.50 (0.50 to 0.50) |",
        f"| {OURS} | 2,000 | 1 | 10,000 | 1 |",
        "| FFCV |  |  | 2,500 | 0.25 (0.25 to 0.25) |",
        "| h5py |  |  | 1,000 | 0.10 (0.10 to 0.10) |",
    ]


@pytest.mark.parametrize("text", ["no marks", f"{END}{BEGIN}", TEXT + BEGIN])
def test_a_document_without_both_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        replace_tables(text, "tables")


def test_without_results_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path), "--root", str(tmp_path)]) == 2
    assert "there are no results" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_has_the_marks(name: str) -> None:
    replace_tables((ROOT / name).read_text(), "tables")


@pytest.mark.skipif(not list(RESULTS.glob("*.json")), reason="no results are committed")
def test_the_tables_of_the_documents_are_those_of_the_committed_results() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_committed_results_were_measured_at_a_commit(path: Path) -> None:
    found = load(path)
    assert found.task in TASKS
    assert path.name == f"{found.task}-{found.started_at[:10]}.json"
    assert found.commit
    assert not found.commit.endswith("-dirty")
