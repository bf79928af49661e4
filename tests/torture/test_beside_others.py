"""Our iterators beside what people use with them, begun at any moment of a start: no process waits forever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import HowMany, Tally

# How many starts, small and full. Most are beside those that fork a process with threads.
NEIGHBOURS = {
    "os.fork": (5, 130),
    "DataLoader, fork": (5, 110),
    "ProcessPoolExecutor": (4, 110),
    "subprocess": (3, 60),
    "joblib's loky": (2, 30),
    "DataLoader, forkserver": (2, 30),
    "DataLoader, spawn": (2, 30),
}


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The program that forks a process for each start."""
    program = Path(__file__).with_name("beside.py")
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",  # or it has threads as soon as numpy is imported
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with subprocess.Popen(
        [sys.executable, program, tmp_path_factory.mktemp("beside")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as started:
        yield started
        started.communicate(timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_start_at_any_moment_of_which_others_start_processes_too(
    neighbour: str, beside: subprocess.Popen[str], how_many: HowMany, tally: Tally
) -> None:
    assert beside.stdin is not None
    assert beside.stdout is not None
    for seed in range(how_many(*NEIGHBOURS[neighbour])):
        print(json.dumps([seed, neighbour]), file=beside.stdin, flush=True)
        answer = json.loads(beside.stdout.readline())
        assert answer["outcome"] == "ended well", (
            f"start {seed} beside {neighbour} {answer['outcome']}: {answer['said']}"
        )
        tally(f"a start beside {neighbour}", "no process hung, every record once")
