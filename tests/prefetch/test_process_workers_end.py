"""Worker processes end with the iterator, the interpreter or the program, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.worker_processes import (
    LIMIT_SECONDS,
    Workers,
    assert_ended,
    descriptors,
    is_running,
    make_async,
    mapped_names,
    workers_of,
)


def test_epochs_leave_no_descriptor_and_use_no_named_memory() -> None:
    with make_async(Workers(16)) as iterator:
        list(iterator)
        gc.collect()
        before = descriptors()
        for epoch in range(20):
            for _ in iterator:
                if epoch % 3 == 0:
                    break
        assert descriptors() <= before
        pids = workers_of(iterator)
        assert len(pids) <= 2
        assert mapped_names(pids) == set()
    assert_ended(pids)


@pytest.mark.parametrize("ending", ["close", "del", "collected"])
def test_workers_end_with_the_iterator(ending: str) -> None:
    gc.collect()
    before = descriptors()
    iterator: Any = make_async(Workers(16))
    pids = workers_of(iterator)
    assert pids
    assert all(map(is_running, pids))
    running = iter(iterator)
    next(running)
    if ending == "close":
        iterator.close()
        with pytest.raises(RuntimeError, match="this epoch was ended"):
            next(running)
    elif ending == "collected":
        cycle = [iterator]
        cycle.append(cycle)  # type: ignore[arg-type]
        del cycle
    del iterator, running
    gc.collect()
    assert not any(map(is_running, pids))
    # The server process that forks workers is kept for others; its pipes are two.
    assert descriptors() <= before + 2


ENDLESS = """
import ctypes, os, sys, time, etl
class Records(list):
    def __getitem__(self, index):
        if index > 20:
            HANG
        return {"features": [float(index)], "label": os.getpid()}
if __name__ == "__main__":
    iterator = etl.AsyncIterator(etl.RawIterator(Records(range(100000)), etl.Pipeline([]), 4), workers="process",
                                 processes=2)
    batches = iter(iterator)
    pids = {int(pid) for _ in range(4) for pid in next(batches).labels} - {os.getpid()}
    print(*pids, flush=True)
    END
"""


def start(tmp_path: Path, hang: str, end: str) -> tuple[subprocess.Popen[str], set[int]]:
    script = tmp_path / "train.py"
    script.write_text(ENDLESS.replace("HANG", hang).replace("END", end))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    pids = {int(pid) for pid in process.stdout.readline().split()}
    assert pids
    return process, pids | {child.pid for child in psutil.Process(process.pid).children(recursive=True)}


def test_workers_end_with_the_interpreter(tmp_path: Path) -> None:
    process, pids = start(tmp_path, "time.sleep(0.01)", "")
    _, noise = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, noise) == (0, "")
    assert_ended(pids)


def test_workers_end_with_a_program_that_is_killed_even_while_one_holds_the_interpreters_lock(tmp_path: Path) -> None:
    hang = "ctypes.PyDLL(None).sleep(600)"
    process, pids = start(tmp_path, hang, "time.sleep(600)")
    assert mapped_names(pids) == set()
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    assert_ended(pids)


def test_an_interrupt_ends_the_program_with_its_own_traceback_alone(tmp_path: Path) -> None:
    process, pids = start(tmp_path, "time.sleep(0.01)", "[None for batch in batches]")
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, noise = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == -signal.SIGINT
    assert noise.startswith("Traceback")
    assert noise.count("Traceback") == 1
    assert noise.rstrip().endswith("KeyboardInterrupt")
    assert "etl-worker" not in noise
    assert_ended(pids)
