"""The study of what makes samples differ: components that are known, the schedule that follows, and a real run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets import DATA_VARIABLE
from benchmarks.journal import Journal
from benchmarks.studies.variances import SERVERS, ServerTimes, components, main, render, repetitions


def test_components_are_those_that_the_values_were_drawn_with() -> None:
    random = np.random.default_rng(1)
    servers, processes, epochs = 4000, 6, 5
    values = 10 + 3 * random.standard_normal((servers, 1, 1))
    values = values + 2 * random.standard_normal((servers, processes, 1))
    values = values + random.standard_normal((servers, processes, epochs))
    assert np.sqrt(components(values)) == pytest.approx([3, 2, 1], rel=0.04)


def test_a_component_that_the_level_below_explains_is_none() -> None:
    values = np.random.default_rng(1).standard_normal((400, 6, 5))
    server, process, epoch = components(values)
    assert epoch == pytest.approx(1, rel=0.05)
    assert max(server, process) < 0.02


def test_repetitions_give_the_least_variance_of_all_that_take_as_long() -> None:
    variances, costs = [0.5, 2.0, 9.0], [4.0, 2.0, 0.5]
    processes, epochs = repetitions(variances, costs)

    def variance(processes: float, epochs: float) -> float:
        """Return the variance of the mean of as many servers as there is time for."""
        servers = 1000 / (costs[0] + processes * (costs[1] + epochs * costs[2]))
        return (variances[0] + (variances[1] + variances[2] / epochs) / processes) / servers

    best = min((variance(p, e), p, e) for p in np.arange(1, 12, 0.25) for e in np.arange(1, 12, 0.25))
    assert (processes, epochs) == pytest.approx(best[1:], abs=0.25)
    assert repetitions([0.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == [math.inf, 1.0]
    assert repetitions([1.0, 0.0, 0.0], [1.0, 4.0, 1.0]) == [1.0, 2.0]


def test_a_study_that_was_interrupted_after_one_server_has_no_table(tmp_path: Path) -> None:
    journal = Journal(SERVERS, tmp_path / "samples.jsonl", {})
    journal.note(0, ServerTimes([[[1.0, 2.0], [3.0, 4.0]]] * 2, 1.0, 1.0))
    assert render(tmp_path / "samples.jsonl") == "Not measured yet: how servers differ takes two of them.\n"
    journal.note(1, ServerTimes([[[1.0, 2.0], [3.0, 4.0]]] * 2, 1.0, 1.0))
    assert "2 servers, 2 processes each" in render(tmp_path / "samples.jsonl")


@pytest.mark.slow
def test_servers_are_measured_and_their_components_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    options = ["--processes", "2", "--epochs", "2", "--photographs", "32", "--samples", str(tmp_path / "samples.jsonl")]
    assert main([*options, "--servers", "2"]) == 0
    assert "2 servers, 2 processes each of two equal arms, 2 epochs" in " ".join(capsys.readouterr().out.split())
