"""Our iterators beside what people use with them, begun at any moment of a start: no process waits forever."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.torture.conftest import HowMany, Tally
from tests.torture.harness import Server

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
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The program that forks a process for each start."""
    # numpy would have threads as soon as it is imported.
    with Server("beside.py", tmp_path_factory.mktemp("beside"), OPENBLAS_NUM_THREADS="1") as started:
        yield started


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_start_at_any_moment_of_which_others_start_processes_too(
    neighbour: str, beside: Server, how_many: HowMany, tally: Tally
) -> None:
    for seed in range(how_many(*NEIGHBOURS[neighbour])):
        answer = beside.ask([seed, neighbour])
        assert answer["outcome"] == "ended well", (
            f"start {seed} beside {neighbour} {answer['outcome']}: {answer['said']}"
        )
        tally(f"a start beside other processes, {neighbour}", "no process hung and every record came once")
