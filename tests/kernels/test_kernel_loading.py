"""Loading numba in the background is safe with forks and with the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_SECONDS = 120
BEGIN = "from etl.kernels import find_normalise_rows as find; find()\n"
# The child must find the module whole, and must be able to begin loading itself if the parent has not.
FORK = """
import os, sys
child = os.fork()
if child == 0:
    from etl.kernels import find_normalise_rows as find
    print("child", find("numba").__module__.split(".")[-1], flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
from etl.kernels import find_normalise_rows as find
print("parent", find("numba").__module__.split(".")[-1], status)
"""
POOL = """
import multiprocessing
context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""
# Threads that begin and fork at once: a fork must wait for a start that is under way.
RACE = """
import os, threading, warnings
warnings.simplefilter("ignore")
from etl.kernels import find_normalise_rows as find
barrier = threading.Barrier(5)
statuses = []
def begin():
    barrier.wait()
    find("numba")
def fork():
    barrier.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if "numba" in find("numba").__module__ else 1)
    statuses.append(os.waitpid(child, 0)[1])
threads = [threading.Thread(target=each) for each in (begin, begin, fork, fork)]
for thread in threads:
    thread.start()
barrier.wait()
for thread in threads:
    thread.join()
print(statuses)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


@pytest.mark.parametrize("begin", ["", BEGIN])
def test_a_fork_right_after_loading_has_begun_leaves_the_child_whole(begin: str) -> None:
    done = run(begin + FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["child normalise_numba", "parent normalise_numba 0"]


def test_a_pool_of_processes_may_be_forked_at_once() -> None:
    done = run(BEGIN + POOL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


def test_threads_may_begin_and_fork_at_the_same_time() -> None:
    done = run(RACE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0]\n", "")


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_the_interpreter_ends_quietly_right_after_loading_has_begun(end: str) -> None:
    done = run(BEGIN + end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_numpys_loop_is_used_until_then_and_without_numba() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from etl.kernels import normalise as module\n"
        "first = module.find_normalise_rows()\n"
        "module._COMPILED.wait()\n"
        "print(first.__module__, module.find_normalise_rows().__module__)"
    )
    done = run(program)
    assert (done.stdout, done.stderr) == ("etl.kernels.normalise etl.kernels.normalise\n", "")
