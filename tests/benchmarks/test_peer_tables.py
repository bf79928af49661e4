"""The tables of peers come from the journal alone, and show where a peer is ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.peers.peer_table import render, show, summarise
from tests.peer_journals import SPDL, write_journal


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_journal(tmp_path / "peers.jsonl")


def test_a_loader_has_two_rows_which_are_compared_like_with_like(journal: Path) -> None:
    text = render(journal)
    assert "commit 0123456789ab on 2 CPUs (a processor): 1,000 photographs, batches of 64, 2 workers." in text
    raw, presaved = ([line for line in part.splitlines() if line[0] == "|"] for part in text.split("\n\n")[1:4:2])
    assert raw[2:] == [
        '| fair-etl | as documented | 1,000 | 1 | 18 | 1.00 | 100 | decoder="turbo", prefetch_size=3 |',
        "|  | prefetch_size=6 | 2,000 | 1 | 6 | 0.50 | 100 |  |",
        "| fair-etl, again | as documented | 1,000 | 1.000 (1.000 to 1.000) | 6 | 1.00 | 100 |  |",
        "| fair-etl, slowed by 2% | as documented | 980 | 0.980 (0.980 to 0.980) | 6 | 1.02 | 100 |  |",
        f"| {SPDL} | as documented | 909 | 0.909 (0.909 to 0.909) | 6 | 1.10 | 100 | pixels within 0.012 |",
        "|  | workers=3 | 4,000 | **2.000 (2.000 to 2.000)** | 6 | 0.25 | 100 | pixels within 0.012 |",
    ]
    assert presaved[-1].startswith("| h5py | as documented | 1,000 | 0.100 | 5 |")  # too few pairs for an interval


def test_every_commit_is_named_at_which_pairs_were_measured(journal: Path) -> None:
    text = journal.read_text()
    _, environment, *_ = text.splitlines(keepends=True)
    later = environment.replace("0123456789ab", "ba9876543210")
    journal.write_text(f"{text}{later}{environment}")
    assert "Measured at commits 0123456789ab, ba9876543210 on 2 CPUs (a processor): 1,000" in render(journal)


def test_what_is_missing_is_named_with_the_last_line_of_the_reason(journal: Path) -> None:
    text = render(journal)
    assert "Grain, simplejpeg, decoded and resized in every epoch (ModuleNotFoundError: grain)" in text
    assert "FFCV, channels last, kept as pixels, normalised in every epoch (wheel)" in text
    assert "| Grain" not in text


def test_the_summary_has_the_fastest_row_of_each_library(journal: Path) -> None:
    lines = [line for line in summarise(journal).splitlines() if line.startswith("|")]
    assert lines[2:] == [
        "| SPDL | **2.000 (2.000 to 2.000)** |  |  |",
        "| fair-etl | 1: 2,000 images/s |  | 1: 10,000 images/s |",
        "| fair-etl, again | 1.000 (1.000 to 1.000) |  |  |",
        "| fair-etl, slowed by 2% | 0.980 (0.980 to 0.980) |  |  |",
    ]
    assert "Below 0.6 in all columns: h5py." in summarise(journal)


def test_the_terminal_has_a_table_for_each_task_that_was_measured(journal: Path) -> None:
    console = Console(width=200, record=True)
    show(journal, console)
    text = console.export_text()
    assert "Photographs decoded and resized in every epoch" in text
    assert "Photographs kept as pixels, normalised in every epoch" in text
    assert "random crops" not in text.partition("Grain, simplejpeg")[0]
    assert "ModuleNotFoundError: grain" in text
