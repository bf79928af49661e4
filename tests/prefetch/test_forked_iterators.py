"""An asynchronous iterator in a fork of the process that made it: no hang, and the parent's resources are intact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import output_of
from tests.worker_processes import assert_ended, is_running

LIMIT_SECONDS = 180

COMMON = """
import gc, multiprocessing, os, signal, sys, tempfile, threading, time
from multiprocessing import forkserver
from pathlib import Path
import numpy as np
import etl
import psutil
from tests.forked_child import forked
from tests.worker_processes import Made

def refused(run, *parts):
    try:
        run()
    except RuntimeError as error:
        assert all(part in str(error) for part in parts), error
    else:
        raise AssertionError("it was done")

def make(**options):
    return etl.AsyncIterator(etl.RawIterator(Made(), etl.Pipeline([]), 4, shuffle=True, seed=1), **options)

def contents(batches):
    return [batch.features.tobytes() for batch in batches]

options = {
    "thread": {"threads": 2},
    "forkserver": {"workers": "process", "processes": 1},
    "spawn": {"workers": "process", "processes": 1, "start_method": "spawn"},
}[sys.argv[1]]

def held():
    iterator = make(**options)
    epochs = [iter(iterator)]
    first = next(epochs[0])
    # As a thread that is inside it would hold it at the moment of the fork.
    is_held, may_end = threading.Event(), threading.Event()
    def hold():
        with epochs[0]._lock, epochs[0]._prefetcher._lock:
            is_held.set()
            may_end.wait()
    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()

    def drop():
        refused(lambda: next(epochs[0]), f"process {os.getppid()}", "fork")
        epochs[0].close()
        epochs.clear()
        gc.collect()

    assert forked(drop) == 0
    may_end.set()
    holder.join()
    assert len([first, *epochs[0]]) == len(iterator)
    iterator.close()

def begun():
    iterator = make(**options)
    next(iter(iterator))
    expected = contents(make())

    def begin():
        if sys.argv[1] != "thread":
            refused(lambda: list(iterator), f"process {os.getppid()}", "make a new iterator here")
            iterator.close()
        else:
            iterator.set_epoch(0)
            assert contents(iterator) == expected
        assert contents(make(threads=2)) == expected
        with make(**options) as its_own:
            assert contents(its_own) == expected

    assert forked(begin) == 0
    iterator.set_epoch(0)
    assert contents(iterator) == expected
    iterator.close()

def batches():
    iterator = make(**options)
    epoch = iter(iterator)
    kept = [next(epoch) for _ in range(2)]
    before = contents(kept)

    def drop():
        kept.clear()
        iterator.close()
        gc.collect()

    assert forked(drop) == 0
    assert contents(kept) == before
    assert any(before[0])
    iterator.close()

def ended():
    iterator = make(**options)
    epoch = iter(iterator)
    first = next(epoch)
    workers = multiprocessing.active_children()
    child = os.fork()
    if child == 0:
        sys.exit(7)  # and what is registered for that is run
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len([first, *epoch]) == len(iterator)
    assert len(workers) == (sys.argv[1] != "thread")
    assert all(worker.is_alive() for worker in workers)
    iterator.close()
"""

IN_A_CHILD = "held()\nbegun()\nbatches()\nended()\n"

LIVED_ON = """
iterator = make(**options)
epoch = iter(iterator)
next(epoch)
[worker] = [child.pid for child in multiprocessing.active_children()]
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    sys.stdin.read()  # until the test has seen the worker's end
    os._exit(0)
print(child, worker, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

BEFORE_THE_SERVER_IS_THERE = """
# The server is told to import this first, which takes until there is a file.
folder = tempfile.TemporaryDirectory()
file = Path(folder.name, "may_go_on")
Path(folder.name, "never_ready.py").write_text(
    f"import os, time\\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)\\n"
)
sys.path.insert(0, folder.name)
multiprocessing.set_forkserver_preload(["never_ready"])

options = {"workers": "process", "processes": 1}
closed, killed, iterated = make(**options), make(**options), make(**options)
closed.close()
assert forked(lambda: contents(make(threads=1))) == 0
for child in multiprocessing.active_children()[:1]:
    child.kill()
    child.join()
file.touch()
expected = contents(make(threads=1))
for iterator in (killed, iterated):
    try:
        assert contents(iterator) == expected
    except ChildProcessError as error:
        assert "killed by signal 9" in str(error), error
        assert contents(iterator) == expected
    iterator.close()
assert not multiprocessing.active_children()
while psutil.Process(forkserver._forkserver._forkserver_pid).children():  # what was given up ends as soon as it runs
    time.sleep(0.01)
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.mark.parametrize(
    ("script", "workers"),
    [
        (IN_A_CHILD, "thread"),
        (IN_A_CHILD, "forkserver"),
        (IN_A_CHILD, "spawn"),
        (BEFORE_THE_SERVER_IS_THERE, "thread"),
    ],
    ids=["thread", "forkserver", "spawn", "before the server is there"],
)
def test_a_fork_neither_hangs_nor_touches_its_parents_resources(script: str, workers: str) -> None:
    output_of("-c", COMMON + script, workers, cwd=Path(__file__).parent)


@pytest.mark.parametrize("workers", ["forkserver", "spawn"])
def test_workers_end_with_a_program_that_is_killed_while_a_fork_of_it_lives_on(workers: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COMMON + LIVED_ON, workers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    ) as program:
        assert program.stdout is not None
        fork, worker = map(int, program.stdout.readline().split())
        program.wait(LIMIT_SECONDS)
        assert_ended({worker})
        assert is_running(fork)
