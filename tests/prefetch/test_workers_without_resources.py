"""Threads, descriptors or memory that have run out: an error, and nothing left of what was begun."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import etl
from tests.leftovers import prefetch_threads
from tests.programs import output_of
from tests.worker_processes import Made


def test_threads_that_cannot_all_be_started_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = etl.AsyncIterator(etl.RawIterator(Made(), etl.Pipeline([]), 4), threads=3)
    before = prefetch_threads()
    start, started = threading.Thread.start, []

    def fail_at_the_third(thread: threading.Thread) -> Any:
        started.append(thread)
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_the_third)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        iter(iterator)
    assert prefetch_threads() == before
    assert len(list(iterator)) == len(iterator)
    iterator.close()


SHORT_OF_DESCRIPTORS = """
import gc, os, resource, sys
import etl
from tests.worker_processes import Made

def used():
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))

def kinds():
    # But pipes: of two that it needs, the standard library keeps the first where there is no second.
    found = []
    for number in used():
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}").partition(":[")[0])
        except FileNotFoundError:
            pass  # that of the listing
    return sorted(kind for kind in found if kind != "pipe")

def make():
    return etl.AsyncIterator(etl.RawIterator(Made(), etl.Pipeline([]), 4), workers="process", processes=2)

with make() as iterator:  # the server process and what is imported late are there from then on
    expected = [batch.features.tobytes() for batch in iterator]
del iterator
gc.collect()
held, most = kinds(), resource.getrlimit(resource.RLIMIT_NOFILE)
refused = 0
for more in range(40):
    # The limit is one of their numbers, of which none may be free below it.
    highest, fillers = max(used()), [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, fillers[-1]) + 1 + more, most[1]))
    iterator = batches = None
    try:
        iterator = make()
        batches = [batch.features.tobytes() for batch in iterator]
        assert batches == expected
    except (OSError, ChildProcessError, etl.sources.RecordError) as error:
        refused += 1
        last = error
        del error
        last.__traceback__ = None
    if iterator is not None:
        iterator.close()
    del iterator
    resource.setrlimit(resource.RLIMIT_NOFILE, most)
    for filler in fillers:
        os.close(filler)
    gc.collect()
    assert kinds() == held, (more, held, kinds(), last)
    if batches is not None:
        break
assert refused and batches == expected, (refused, last)
print(refused)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_descriptors_that_have_run_out_are_an_error_and_none_is_kept() -> None:
    assert int(output_of("-c", SHORT_OF_DESCRIPTORS, cwd=Path(__file__).parent)) > 3
