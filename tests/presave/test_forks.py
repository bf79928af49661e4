"""A fork waits until no background thread of this project holds a lock, which the child would inherit locked.

Each program forks while such a thread is inside a critical section, and its child needs the lock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import output_of

COMMON = """
import os, sys, threading, time, warnings
import multiprocessing, multiprocessing.forkserver, multiprocessing.resource_tracker
import etl, presave
from presave import forks
from tests.forked_child import forked
from tests.worker_processes import Made

is_inside = threading.Event()

def slowly(run):
    # Return `run`, but slow and noticeable: a call sets `is_inside` and takes longer.
    def run_slowly(*arguments):
        is_inside.set()
        time.sleep(0.3)
        return run(*arguments)
    return run_slowly

def make(records, **options):
    return etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 4), **options)

def assert_child_survives(run):
    assert is_inside.wait(30)
    assert forked(run) == 0
"""

STARTING = """
processes = {"workers": "process", "processes": 1, "start_method": sys.argv[1]}
"""

TEMPORARY_FOLDER = """
import tempfile
tempfile._get_default_tempdir = slowly(tempfile._get_default_tempdir)
iterator = make(Made(), workers="process", processes=1)  # the fork server's socket is in a temporary folder
assert_child_survives(tempfile.gettempdir)
"""

RESOURCE_TRACKER = """
multiprocessing.util.spawnv_passfds = slowly(multiprocessing.util.spawnv_passfds)
iterator = make(Made(), **processes)
assert_child_survives(multiprocessing.resource_tracker.ensure_running)
"""

BUFFERED_STDOUT = """
import io
class Raw(io.RawIOBase):
    write = staticmethod(slowly(len))
    def writable(self):
        return True
sys.stdout = io.TextIOWrapper(io.BufferedWriter(Raw(), 1 << 20))
sys.stdout.write("loading")
iterator = make(Made(), **processes)  # starting a process flushes stdout
assert_child_survives(sys.stdout.flush)
"""

IMPORTS_OF_MULTIPROCESSING = """
import importlib.abc
class Slow(importlib.abc.MetaPathFinder):
    find = staticmethod(slowly(lambda *_: None))
    def find_spec(self, name, *_):
        return self.find() if name.startswith("multiprocessing.") else None
for name in [each for each in sys.modules if each.startswith("multiprocessing.popen_")]:
    del sys.modules[name], vars(multiprocessing)[name.split(".")[1]]
sys.meta_path.insert(0, Slow())
iterator = make(Made(), **processes)
is_inside.wait(2)  # in vain, if nothing needs to be imported
is_inside.set()
def child():
    import multiprocessing.popen_forkserver, multiprocessing.popen_spawn_posix
assert_child_survives(child)
"""

REPLACEMENT = """
iterator = make(Made(400), prefetch_size=1, **processes)
batches = iter(iterator)
first = next(batches)
prefetcher = iterator._running()._prefetcher
while not (prefetcher._pending and prefetcher._pending[0].is_done):
    time.sleep(0.01)
tracker = multiprocessing.resource_tracker._resource_tracker
tracker._check_alive = slowly(tracker._check_alive)
[worker] = multiprocessing.active_children()
worker.kill()
assert_child_survives(multiprocessing.resource_tracker.ensure_running)
assert len([first, *batches]) == len(iterator)
iterator.close()
"""

LATE = """
from pathlib import Path
import tempfile
folder = tempfile.TemporaryDirectory()
Path(folder.name, "imported_late.py").write_text("import __main__, time; __main__.is_inside.set(); time.sleep(1)")
sys.path.insert(0, folder.name)

class Late(Made):
    thread_safe = True  # so that all threads read it, with no check before

    def __getitem__(self, index):
        if multiprocessing.parent_process() is None:
            import imported_late
        return super().__getitem__(index)

def child():
    import imported_late
"""

LATE_IMPORT = """
options = {"threads": 2} if sys.argv[1] == "thread" else {"workers": "process", "processes": 1}
with make(Late(), **options) as iterator:
    batches = iter(iterator)  # also with processes, this one loads the first record, to plan the batch
    assert_child_survives(child)
    assert len(list(batches)) == len(iterator)
"""

# Before several threads read a data set that does not say if they may, they try, while this thread waits for them.
LATE_IMPORT_IN_A_CHECK = """
from concurrent.futures import ThreadPoolExecutor
Late.thread_safe = False
with ThreadPoolExecutor(1) as pool, make(Late(), threads=2) as iterator:
    survives = pool.submit(assert_child_survives, child)
    assert len(list(iterator)) == len(iterator)
    survives.result()
"""

SHARD = """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    presave.write(f"{folder}/s", Made()).close()
    with presave.open_store(f"{folder}/s") as store:
        store._shards._open = slowly(store._shards._open)
        reader = threading.Thread(target=store.gather, args=([3],))
        reader.start()
        assert_child_survives(lambda: store.gather([3]))
        reader.join()
"""

# Loading needs a lock that another fork handler takes. That handler must not run before ours has waited.
POOL_OF_THREADS = """
from concurrent.futures import ThreadPoolExecutor
from presave.mapped_rows import COMPILED

def load():
    is_inside.set()
    time.sleep(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
    return sys

COMPILED._load_module = load
COMPILED.begin()
def child():
    COMPILED.wait()
    assert COMPILED.module is sys
assert_child_survives(child)
"""

NOT_BEGUN = """
from presave.compiled import Compiled
run, may_run = threading.Thread.run, threading.Event()
def run_later(thread):
    may_run.wait()
    run(thread)
threading.Thread.run = run_later
compiled = Compiled(lambda: sys)
compiled.begin()
is_inside.set()
def child():
    threading.Thread.run = run
    compiled.wait()
    assert compiled.module is sys
assert_child_survives(child)
may_run.set()
compiled.wait()
assert compiled.module is sys
"""

# The thread waits for a lock that the forking thread holds.
WAITED_FOR_IN_VAIN = """
lock = threading.Lock()
def wait_for_lock():
    with forks.held_off(0.2):
        is_inside.set()
        with lock:
            pass
waiting = threading.Thread(target=wait_for_lock, name="in vain")
with lock, warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    waiting.start()
    assert_child_survives(lambda: None)
    assert forked(lambda: None) == 0  # and does not wait again
waiting.join()
[said] = [str(each.message) for each in caught if each.category is RuntimeWarning]
assert said.startswith("a fork has waited 0.2 s for thread 'in vain' and has not waited longer"), said
"""

FORKS_INSIDE = """
codes = []
both = threading.Barrier(2)
def fork():
    with forks.held_off(60):
        both.wait()
        codes.append(forked(lambda: None))
threads = [threading.Thread(target=fork) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert codes == [0, 0], codes
def child():
    with forks.held_off():
        assert forked(lambda: None) == 0
with forks.held_off():
    assert forked(child) == 0
"""

LET_THROUGH = """
has_forked = threading.Event()
def work():
    with forks.held_off(60):
        is_inside.set()
        while not has_forked.is_set():
            forks.let_through()
        with forks.allowed():
            may_end.wait()
may_end = threading.Event()
working = threading.Thread(target=work)
working.start()
def child():
    forks.let_through()
    with forks.held_off(), forks.allowed():
        assert forked(forks.let_through) == 0
assert_child_survives(child)
has_forked.set()
assert_child_survives(child)
may_end.set()
working.join()
"""

PROGRAMS = {
    "the folder for temporary files": (TEMPORARY_FOLDER, ""),
    "resource tracker, forkserver": (STARTING + RESOURCE_TRACKER, "forkserver"),
    "resource tracker, spawn": (STARTING + RESOURCE_TRACKER, "spawn"),
    "buffered stdout, forkserver": (STARTING + BUFFERED_STDOUT, "forkserver"),
    "buffered stdout, spawn": (STARTING + BUFFERED_STDOUT, "spawn"),
    "imports of multiprocessing, forkserver": (STARTING + IMPORTS_OF_MULTIPROCESSING, "forkserver"),
    "imports of multiprocessing, spawn": (STARTING + IMPORTS_OF_MULTIPROCESSING, "spawn"),
    "a worker is replaced, forkserver": (STARTING + REPLACEMENT, "forkserver"),
    "a worker is replaced, spawn": (STARTING + REPLACEMENT, "spawn"),
    "a record imports late, thread": (LATE + LATE_IMPORT, "thread"),
    "a record imports late, process": (LATE + LATE_IMPORT, "process"),
    "a record imports late in a check": (LATE + LATE_IMPORT_IN_A_CHECK, ""),
    "a shard is opened": (SHARD, ""),
    "a pool of threads": (POOL_OF_THREADS, ""),
    "a loop whose loading has not begun": (NOT_BEGUN, ""),
    "waited for in vain": (WAITED_FOR_IN_VAIN, ""),
    "forks inside": (FORKS_INSIDE, ""),
    "let through": (LET_THROUGH, ""),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_child_inherits_no_lock_that_a_background_thread_holds(what: str) -> None:
    program, argument = PROGRAMS[what]
    output_of("-c", COMMON + program, argument, cwd=Path(__file__).parent)
