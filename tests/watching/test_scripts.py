"""Scripts whose waits have a known cause: `etl run` names it, in at most a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
CAUSES = {
    "too_few_workers": ("waits", "too few workers"),
    "storage": ("waits", "storage"),
    "python_code": ("waits", "Python code"),
    "copies": ("waits", "copies"),
    "epoch_starts": ("waits", "starts of epochs"),
    "slow_records": ("waits", "slow records"),
    "memory": ("waits", "memory"),  # it allocates, which is a part of loading
    "computes": ("computes", ""),
    "loads_ahead": ("computes", ""),
}
pytestmark = pytest.mark.alone


def diagnose(name: str, folder: Path, *before: str) -> list[list[dict[str, Any]]]:
    """Return what `etl run` finds in a script, by rank and loop."""
    file = folder / "found.json"
    command = [sys.executable, *before, "-m", "etl", "run", "--json", str(file), str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ranks: list[list[dict[str, Any]]] = json.loads(file.read_text())["ranks"]
    return ranks


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named(name: str, tmp_path: Path) -> None:
    ((found, *_),) = diagnose(name, tmp_path)
    assert (found["verdict"], found["cause"]) == CAUSES[name], found


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "etl", "run", "--json", str(file), str(SCRIPTS / "slow_rank.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of slow_rank.py waits for data" in done.stderr
    assert "in their steps for rank 1: a slow rank." in done.stderr
    fast, slow = json.loads(file.read_text())["ranks"]
    assert slow[0]["share"] > 0.5 > fast[0]["share"]


@pytest.mark.parametrize(("name", "library"), [("hf_trainer", "transformers"), ("lightning_run", "lightning")])
def test_loops_of_trainers_are_found(name: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    ((found, *_),) = diagnose(name, tmp_path)
    assert (found["verdict"], found["cause"]) == ("waits", "too few workers")
