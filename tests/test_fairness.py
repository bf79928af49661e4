"""Cells are measured in processes of their own, and figures of unequal work are refused."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cell import STRATEGIES, Cell
from benchmarks.profile import Profile
from benchmarks.rounds import CellServer, Unfair, check_same_work, measure_cells
from benchmarks.workload import DATA_VARIABLE, Data, make_data

PROFILE = Profile("test", samples=20, image_size=32, rounds=2, seconds_per_figure=0.0, grid=False)
EQUAL = {"digest": "a", "samples": 20, "score": 2.3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(tmp_path_factory.mktemp("data")))
        yield make_data(PROFILE, tmp_path_factory.mktemp("store"))


def test_every_strategy_does_the_same_work_and_its_figures_belong_together(data: Data) -> None:
    results = measure_cells([Cell(strategy=strategy, batch_size=8) for strategy in STRATEGIES], data, PROFILE)
    assert [cell.strategy for cell in results] == list(STRATEGIES)
    for samples in results.values():
        assert not isinstance(samples, str), samples
        assert len(samples) == PROFILE.rounds
        for sample in samples:
            assert sample["samples"] == 20
            assert 0 < sample["stall"] + sample["compute"] <= sample["wall"]
            assert sample["etl"] > 0
            assert sample["peak_memory"] > 50e6  # torch alone takes more


def test_a_cell_that_fails_says_why_and_the_others_are_measured(data: Data) -> None:
    results = measure_cells([Cell(dtype="float8"), Cell(batch_size=8)], data, dataclasses.replace(PROFILE, rounds=1))
    failed, measured = results.values()
    assert "unknown dtype 'float8'" in str(failed)
    assert len(measured) == 1


def test_a_server_that_dies_is_reported_and_the_next_cell_is_measured(data: Data, tmp_path: Path) -> None:
    broken = dataclasses.replace(data, stores={Cell().store: str(tmp_path / "absent.store")})
    with CellServer(broken, 0.0) as server:
        assert "does not exist" in server.measure(Cell())["error"]
        assert server._server is None  # a session that failed may have left anything behind
        server.measure(Cell(strategy="raw"))
        assert server._server is not None
        os.kill(server._server.pid, signal.SIGKILL)
        assert "the process of a cell was killed by signal 9" in server.measure(Cell())["error"]
        assert server.measure(Cell(strategy="raw"))["samples"] == 20


@pytest.mark.parametrize(("part", "other"), [("digest", "b"), ("samples", 19), ("score", 2.4)])
def test_figures_of_unequal_work_are_refused(part: str, other: Any) -> None:
    results = {Cell("raw"): [EQUAL], Cell("presaved"): [EQUAL, {**EQUAL, part: other}]}
    with pytest.raises(Unfair, match=str(other)):
        check_same_work(results)


def test_cells_whose_work_differs_by_their_axes_are_not_compared() -> None:
    check_same_work({Cell(batch_size=1): [EQUAL], Cell(batch_size=32): [{**EQUAL, "digest": "b"}]})
