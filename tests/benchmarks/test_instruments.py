"""The clock does not move: a commit with other instruments is measured with those of the working tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cells import Cell, Profile
from benchmarks.compare_commits.commits import Commit, extract
from benchmarks.compare_commits.commits_turns import start_commit
from benchmarks.compare_commits.commits_worker import ETL, PHOTOGRAPHS
from benchmarks.datasets import DATA_VARIABLE, find_photographs
from benchmarks.measure import CellConditions, CellServer, cpus_of_cells
from benchmarks.measuring.instruments import current_instruments
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.turns import OpenedArm
from benchmarks.servers import ISOLATED_MAIN
from benchmarks.workload import make_data
from tests.scratch import ROOT, make_scratch

INSTRUMENTS = ROOT / "etl" / "measuring"
# Instruments by which everything takes a millionth of its time, and a file that says that the package was imported.
RIGHT_NOW, OTHER_NOW = "    now = time.perf_counter\n", "    now = lambda: time.perf_counter() * 1e-6\n"
RIGHT_WALL, OTHER_WALL = "wall = ended - began\n", "wall = (ended - began) * 1e-6\n"
NOTE_VARIABLE = "FAIR_ETL_NOTE"
NOTE = f"""
import os
from pathlib import Path

if "{NOTE_VARIABLE}" in os.environ:
    Path(os.environ["{NOTE_VARIABLE}"]).write_text(__file__)
"""
# Far below what a process needs for an epoch or a turn, and far above a millionth of it.
SECONDS = 2e-5
COMMITS_SERVER = """
import sys
sys.path[:0] = sys.argv[1:3]
from etl.measuring.server import serve
serve()
"""


@pytest.fixture(scope="module")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Commit:
    """A commit whose clocks are wrong."""
    scratch = make_scratch(tmp_path_factory.mktemp("instruments"))
    scratch.replace("etl/measuring/clock.py", RIGHT_NOW, OTHER_NOW)
    scratch.replace("etl/measuring/turns.py", RIGHT_WALL, OTHER_WALL)
    package = scratch.folder / "etl/__init__.py"
    package.write_text(package.read_text() + NOTE)
    return extract(scratch.commit("Let time pass more slowly"), scratch.folder)


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which processes note which `etl` they have imported."""
    path = tmp_path / "note"
    monkeypatch.setenv(NOTE_VARIABLE, str(path))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    return path


def test_a_cell_of_a_commit_is_measured_with_the_instruments_of_the_working_tree(
    commit: Commit, note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data(Profile("test", 20, 32, rounds=1, seconds_per_figure=0.0, grid=False), tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(commit.folder))
    with CellServer(CellConditions(data, 0.0, cpus_of_cells())) as server:
        metrics = server.measure(Cell("raw")).metrics
    assert note.read_text() == str(commit.folder / "etl/__init__.py")
    assert min(metrics.etl, metrics.epoch.wall.total, metrics.epoch.compute.total) > SECONDS
    assert current_instruments().path == str(INSTRUMENTS)  # to which the server holds every answer


def test_a_turn_of_a_commit_is_measured_with_the_instruments_of_the_working_tree(commit: Commit, note: Path) -> None:
    find_photographs(PHOTOGRAPHS)
    with start_commit(commit, ["raw"], str(note.parent), number=0) as server:
        server.wait_until_ready()
        opened = OpenedArm.from_json(server.ask({"strategy": "raw", "slower": 0.0}))
        turn = server.ask({"metric": ETL, "epochs": 1, "cpus": sorted(os.sched_getaffinity(0))[:1]})
    assert note.read_text() == str(commit.folder / "etl/__init__.py")
    assert min(*opened.seconds.values(), turn["seconds"]) > SECONDS


def test_a_server_with_the_instruments_of_a_commit_is_refused(commit: Commit) -> None:
    served = Path(__file__).parents[1] / "measuring"
    command = [sys.executable, "-c", COMMITS_SERVER, str(commit.folder), str(served), "served:prepare"]
    of_commit, own = (re.escape(str(path)) for path in (commit.folder / "etl/measuring", INSTRUMENTS))
    with (
        Server("raw", command, {}, timeout=60) as server,
        pytest.raises(
            MeasurementError,
            match=rf"^raw was measured with the instruments {of_commit} \(\w+\), not with {own} \(\w+\)$",
        ),
    ):
        server.wait_until_ready()


def test_a_function_of_the_folder_runs_without_the_folder_on_python_s_path() -> None:
    variables = {**os.environ, "PYTHONSAFEPATH": "1"}
    subprocess.run([sys.executable, str(ISOLATED_MAIN), "cells:chosen_profile"], env=variables, check=True)
