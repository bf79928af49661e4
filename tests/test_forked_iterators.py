"""An asynchronous iterator in a fork of the process that made it: no hang, and nothing of the other's is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_SECONDS = 60

COMMON = """
import gc, os, signal, sys, threading
import numpy as np
import etl
from worker_processes import Made

def forked(run):
    # What a child of this one does, which must come to an end; its exit code.
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            run()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

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

options = {"thread": {"threads": 2}, "process": {"workers": "process", "processes": 1}}[sys.argv[1]]
iterator = make(**options)
epoch = iter(iterator)
"""

HELD = """
first = next(epoch)
# As a thread that is inside it would hold it at the moment of the fork.
is_held, may_end = threading.Event(), threading.Event()
def hold():
    with epoch._crew._lock:
        is_held.set()
        may_end.wait()
holder = threading.Thread(target=hold)
holder.start()
is_held.wait()

def drop():
    global epoch
    refused(lambda: next(epoch), f"process {os.getppid()}", "fork")
    epoch.close()
    epoch = None
    gc.collect()

assert forked(drop) == 0
may_end.set()
holder.join()
assert len([first, *epoch]) == len(iterator)
iterator.close()
"""

BEGUN = """
next(epoch)
expected = contents(make())

def begin():
    if sys.argv[1] == "process":
        refused(lambda: list(iterator), f"process {os.getppid()}", "an iterator of its own")
        iterator.close()
    else:
        iterator.set_epoch(0)
        assert contents(iterator) == expected
    assert contents(make(threads=2)) == expected

assert forked(begin) == 0
iterator.set_epoch(0)
assert contents(iterator) == expected
iterator.close()
"""

BATCHES = """
held = [next(epoch) for _ in range(2)]
before = contents(held)

def drop():
    held.clear()
    iterator.close()
    gc.collect()

assert forked(drop) == 0
assert contents(held) == before
assert any(before[0])
iterator.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("script", [HELD, BEGUN, BATCHES], ids=["dropped", "begun anew", "batches dropped"])
def test_a_fork_neither_hangs_nor_touches_what_is_the_others(script: str, workers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + script, workers],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
