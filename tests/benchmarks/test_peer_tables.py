"""The tables of peers come from the journal alone, and show where a peer is ahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.peers.pairs import DOCUMENTED, TUNED
from benchmarks.peers.peer_table import render, show, summarise
from benchmarks.peers.rows import AGAIN, OURS, PRESAVED, RAW, SLOWED

SPDL = "SPDL, simplejpeg"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a journal of pairs of 1,000 photographs: SPDL is slower as documented, and faster when both are tuned."""
    lines: list[dict[str, Any]] = [
        {"experiment": "peers", "photographs": 1000, "batch_size": 64, "workers": 2, "missing": {"ffcv": "no\nwheel"}},
        {"environment": {"commit": "0123456789ab", "machine": {"cpus": 2, "processor": "a processor"}}},
    ]

    def note(task: str, name: str, arm: str, ours: float, theirs: float, count: int = 6, **more: Any) -> None:
        for number in range(count):
            base, other = ({"epochs": [each], "cpu_seconds": each, "peak_nbytes": 10**8} for each in (ours, theirs))
            lines.append({"key": [task, name, arm, number], "result": {"base": base, "other": other, **more}})

    note(RAW, AGAIN, DOCUMENTED, 1.0, 1.0, distance=0.0)
    note(RAW, SLOWED, DOCUMENTED, 1.0, 1.02, distance=0.0)
    note(RAW, SPDL, DOCUMENTED, 1.0, 1.1, distance=0.0123)
    note(RAW, OURS, "prefetch_size=6", 1.0, 0.5, count=2, arguments={"prefetch_size": 6})
    note(RAW, SPDL, "workers=3", 1.1, 0.3, count=2, arguments={"workers": 3})
    note(RAW, SPDL, TUNED, 0.5, 0.25, arguments={"workers": 3}, distance=0.0123)
    note(PRESAVED, "h5py", DOCUMENTED, 0.1, 1.0, count=5, distance=0.0)
    failed = {"base": None, "other": None, "failure": "Traceback\nModuleNotFoundError: grain"}
    lines.append({"key": [RAW, "Grain, simplejpeg", DOCUMENTED, 0], "result": failed})
    path = tmp_path / "peers.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


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
    assert presaved[-1].startswith("| h5py | as documented | 1,000 | 0.10 | 5 |")  # too few pairs for an interval


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
        "| h5py |  |  | 0.10 |",
    ]


def test_the_terminal_has_a_table_for_each_task_that_was_measured(journal: Path) -> None:
    console = Console(width=200, record=True)
    show(journal, console)
    text = console.export_text()
    assert "Photographs decoded and resized in every epoch" in text
    assert "Photographs kept as pixels, normalised in every epoch" in text
    assert "random crops" not in text.partition("Grain, simplejpeg")[0]
    assert "ModuleNotFoundError: grain" in text
