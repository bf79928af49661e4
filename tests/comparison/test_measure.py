"""A sample of a loader is what the loader does, whatever it does between epochs and after the last one."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.worker.builtin import loading_of
from etl.comparison.worker.untimed import check_epoch, try_loader
from etl.measuring.epochs import Epochs, MeasuredLoader
from etl.training.compute import Simulated
from tests.comparison_workloads import make_workload
from tests.programs import output_of

BATCHES = 6


# torch's DataLoader has such a handler for its workers.
LEFT_BEHIND = """
import signal, subprocess, sys

def complain(number, frame):
    raise RuntimeError("a worker was killed")

signal.signal(signal.SIGCHLD, complain)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
from etl.comparison.worker import user_loader
user_loader.ENDING_SECONDS = 0.1
[name] = user_loader.end_processes()
assert "time.sleep(600)" in name
worker.wait(10)
"""


def test_the_loader_is_not_told_of_the_end_of_processes_that_it_left_behind() -> None:
    output_of("-c", LEFT_BEHIND)


class Keeps:
    """A loader that takes long to make, and longer for its first epoch, of which it keeps the batches."""

    def __init__(self) -> None:
        time.sleep(0.1)
        self.kept: list[np.ndarray] = []
        self.epochs = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        self.epochs += 1
        if not self.kept:
            time.sleep(0.2)
            self.kept = [np.full((4, 2), number) for number in range(BATCHES)]
        return iter(self.kept)


def test_an_untimed_epoch_tells_what_a_loader_takes(tmp_path: Path) -> None:
    loading = MeasuredLoader(Keeps, lambda batch: Simulated(0.0, True), [], is_cold=False)
    seen = check_epoch(loading, None, trains=True, arrays_file=str(tmp_path / "arrays.npz"))
    assert seen.make_seconds >= 0.1
    assert seen.first_seconds >= 0.3 > seen.batch_seconds
    assert (seen.device, seen.compute_seconds, seen.reshuffles) == ("none", {}, None)


def test_an_untimed_epoch_tells_the_threads_that_a_loader_sets(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Sets(Keeps):
        def __iter__(self) -> Iterator[np.ndarray]:
            torch.set_num_threads(before + 1)
            return super().__iter__()

    before = torch.get_num_threads()
    loading = MeasuredLoader(Sets, lambda batch: Simulated(0.0, True), [], is_cold=False)
    try:
        seen = check_epoch(loading, None, trains=True, arrays_file=str(tmp_path / "arrays.npz"))
        assert seen.torch_threads == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("again", "epochs", "reshuffles"), [("", 1, None), ("begun", 2, None), ("whole", 2, False)])
def test_a_second_epoch_is_looked_at_if_asked_for(
    again: str, epochs: int, reshuffles: bool | None, tmp_path: Path
) -> None:
    made: list[Keeps] = []

    def make() -> Keeps:
        made.append(Keeps())
        return made[-1]

    loading = MeasuredLoader(make, lambda batch: Simulated(0.0, True), [], is_cold=False)
    seen = check_epoch(loading, None, trains=False, arrays_file=str(tmp_path / "arrays.npz"), again=again)
    assert ([each.epochs for each in made], seen.reshuffles) == ([epochs], reshuffles)


def test_an_iterator_that_has_one_epoch_only_is_an_error(tmp_path: Path) -> None:
    loading = MeasuredLoader(
        lambda: iter([np.zeros((4, 2))] * BATCHES), lambda batch: Simulated(0.0, True), [], is_cold=False
    )
    with pytest.raises(ValueError, match="its second epoch has no batches"):
        check_epoch(loading, None, trains=False, arrays_file=str(tmp_path / "arrays.npz"), again="begun")


def test_processes_of_a_strategy_start_in_its_epoch_as_those_of_a_data_loader_do(tmp_path: Path) -> None:
    def workers() -> int:
        return sum(each.name == "etl-worker" for each in multiprocessing.active_children())

    loading = loading_of(make_workload(tmp_path), Candidate("process-raw"), CpuSplit(1, 2))
    before = workers()
    with Epochs(loading) as epochs:
        epochs.prepare()
        assert workers() == before
        for _ in range(2):
            assert sum(batch.records for batch in epochs) == 200
            assert workers() == before + 2
        epochs.rewind()
    assert workers() == before


def test_more_workers_than_cpus_may_each_end_with_an_incomplete_batch() -> None:
    class Divided(Keeps):
        num_workers = len(os.sched_getaffinity(0)) + 1

    records = 4 * (BATCHES + Divided.num_workers - 1)
    loading = MeasuredLoader(Divided, lambda batch: Simulated(0.0, True), [], is_cold=False, records=records)
    tried = try_loader(loading, None, step_records=4, seconds=60.0)
    assert (tried.batches, tried.has_selected_records) == (BATCHES, True)
