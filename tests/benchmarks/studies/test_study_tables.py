"""Studies whose result is a table: they measure what is missing, keep it, and render it for README and docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import etl
from benchmarks import serving
from benchmarks.studies import bare_loop, compute_times
from benchmarks.studies.coverage import Run


def test_bare_loops_and_the_clock_take_turns_over_every_loader(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare_loop, "SIZE", 16)
    records: list[int] = []
    monkeypatch.setattr(bare_loop, "read", lambda batch: records.append(len(bare_loop.views_in(batch)[0])))
    journal = tmp_path / "loops.jsonl"
    assert bare_loop.main([str(photographs), "--rounds", "1", "--samples", str(journal)]) == 0
    heading, _, *lines = bare_loop.render(journal).splitlines()
    assert heading == "| loader | under the clock | rounds |"
    assert [line.split(" | ")[0] for line in lines] == [f"| {name}" for name in bare_loop.LOADERS]
    epochs = len(bare_loop.LOADERS) * (1 + 2 * bare_loop.EPOCHS)
    assert sum(records) == epochs * len(etl.open_source(photographs))


def test_each_compute_time_has_a_comparison_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def compare(arguments: Any) -> Run:
        asked.append(" ".join(arguments))
        return Run({"presaved": [1.0] * 8, "raw": [4.0] * 8, "async-raw": [2.0] * 8}, 9.0)

    monkeypatch.setattr(compute_times, "compare_once", compare)
    journal = tmp_path / "times.jsonl"
    for _ in range(2):  # nothing is measured again
        assert compute_times.main(["photos", "--samples", str(journal)]) == 0
    assert len(asked) == len(compute_times.CASES)
    assert asked[1].endswith("--compute simulated:1ms --decoder turbo")
    line = "| 5 ms | pillow | 1 s | 4 s | 2 s | 4.00 (4.00 to 4.00) | 2.00 (2.00 to 2.00) |"
    assert line in compute_times.render(journal)
    assert "raw / presaved" in capsys.readouterr().out


def test_every_server_answers_and_its_line_has_ratio_and_latencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SHAPES", {"mlp": (1, 8, 8)})
    monkeypatch.setattr(serving, "SHARES", (0.5,))
    journal = tmp_path / "serving.jsonl"
    loads = ["--clients", "3", "--workers", "1", "--rounds", "1", "--seconds", "0.05"]
    assert serving.main([*loads, "--samples", str(journal)]) == 0
    heading, _, *lines = serving.render(journal).splitlines()
    assert heading == "| model | server | answers/s | of lock | p50, p99 ms at 50% |"
    assert [line.split(" | ")[1] for line in lines] == list(serving.SERVERS)
    assert serving.sentence(journal).endswith(" for mlp.\n")


def test_an_interruption_ends_clients_that_wait_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        serving.latencies(lambda: lambda features: features, 2, 1.0, lambda answer, number: None, rate=1e-3, seed=0)
