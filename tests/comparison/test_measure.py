"""A sample of a loader is what the loader does, whatever it does between epochs and after the last one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etl.comparison.epochs import Loading
from etl.comparison.measure import check_epoch, take_sample
from etl.comparison.steps import Simulated

BATCHES, EPOCH, STEP = 6, "epoch", "step"


@pytest.mark.parametrize("is_cold", [False, True])
def test_loading_alone_follows_an_epoch_that_computes_only_to_warm_up(is_cold: bool) -> None:
    # Otherwise a loader that reads ahead of its epochs would have loaded some of it while the epoch before computed.
    seen: list[str] = []

    class Loader:
        def __iter__(self) -> Iterator[np.ndarray]:
            seen.append(EPOCH)
            return (np.zeros((4, 2)) for _ in range(BATCHES))

    class Noted(Simulated):
        def __call__(self, batch: Any) -> None:
            seen.append(STEP)
            super().__call__(batch)

    loading = Loading(
        make=Loader,
        make_compute=lambda batch: Noted(0.0, True),
        files=[],
        is_cold=is_cold,
        compute_seconds=0.0,
        is_ahead=True,
    )
    sample = take_sample(loading, [], with_etl_alone=True)
    assert sample.etl_alone is not None
    assert (sample.epoch.batches, sample.epoch.samples) == (BATCHES, 4 * BATCHES)
    assert seen[: 5 + BATCHES] == [EPOCH, STEP, STEP, EPOCH, EPOCH, *[STEP] * BATCHES]


# torch's DataLoader has such a handler for its workers.
LEFT_BEHIND = """
import signal, subprocess, sys

def complain(number, frame):
    raise RuntimeError("a worker was killed")

signal.signal(signal.SIGCHLD, complain)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
from etl.comparison import foreign
foreign.ENDING_SECONDS = 0.1
[name] = foreign.end_processes()
assert "time.sleep(600)" in name
worker.wait(10)
"""


def test_the_loader_is_not_told_of_the_end_of_processes_that_it_left_behind() -> None:
    subprocess.run([sys.executable, "-c", LEFT_BEHIND], check=True, timeout=60)


def test_an_untimed_epoch_tells_what_a_loader_does_once(tmp_path: Path) -> None:
    class Keeps:
        def __init__(self) -> None:
            time.sleep(0.1)
            self.kept: list[np.ndarray] = []

        def __iter__(self) -> Iterator[np.ndarray]:
            if not self.kept:
                time.sleep(0.2)
                self.kept = [np.full((4, 2), number) for number in range(BATCHES)]
            return iter(self.kept)

    loading = Loading(Keeps, lambda batch: Simulated(0.0, True), [], is_cold=False, compute_seconds=0.0)
    seen = check_epoch(loading, trains=False, arrays_file=str(tmp_path / "arrays.npz"), looks_again=True)
    assert seen.make_seconds >= 0.1
    first, second = seen.epoch_waits
    assert first >= 0.2 > second
