"""Scripts whose waits have a known cause: `etl run` names it, in at most a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_python

SCRIPTS = Path(__file__).parent / "scripts"
CAUSES = {
    "too_few_workers": ("waits", "too few workers"),
    "slow_start": ("waits", "too few workers"),
    "storage": ("waits", "storage"),
    "python_code": ("waits", "Python code"),
    "child_processes": ("waits", "Python code"),
    "copies": ("waits", "copies"),
    "epoch_starts": ("waits", "starts of epochs"),
    "slow_records": ("waits", "slow records"),
    "memory": (None, "memory"),  # it allocates, which is a small part of loading
    "computes": ("computes", ""),
    "loads_ahead": ("computes", ""),
}
pytestmark = pytest.mark.alone


def diagnose(name: str, folder: Path, *before: str) -> tuple[list[list[dict[str, Any]]], str]:
    """Return what `etl run` finds in a script, by rank and loop, and what it says."""
    done = run_python(*before, "-m", "etl", "run", "--json", "found.json", SCRIPTS / f"{name}.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())["ranks"], done.stderr


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named(name: str, tmp_path: Path) -> None:
    [[found, *_]], _ = diagnose(name, tmp_path)
    verdict, cause = CAUSES[name]
    assert (found["verdict"], found["cause"]) == (verdict or found["verdict"], cause), found


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    (fast, slow), said = diagnose("slow_rank", tmp_path, *torchrun)
    assert "rank 1 of slow_rank.py waits for data" in said
    assert "in their steps for rank 1: a slow rank." in said
    assert slow[0]["share"] > 0.5 > fast[0]["share"]


@pytest.mark.parametrize(("name", "library"), [("hf_trainer", "transformers"), ("lightning_run", "lightning")])
def test_loops_of_trainers_are_found(name: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    [[found, *_]], _ = diagnose(name, tmp_path)
    assert (found["verdict"], found["cause"]) == ("waits", "too few workers")
