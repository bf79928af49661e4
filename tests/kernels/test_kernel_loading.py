"""Loading numba in the background is safe with forks and with the end of the interpreter."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import run_python

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
    return run_python("-W", "ignore::DeprecationWarning", "-c", program)


@pytest.mark.parametrize("begin", ["", BEGIN])
def test_a_fork_right_after_loading_has_begun_leaves_the_child_whole(begin: str) -> None:
    done = run(begin + FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["child normalise_numba", "parent normalise_numba 0"]


def test_threads_may_begin_and_fork_at_the_same_time() -> None:
    done = run(RACE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0]\n", "")


def test_the_interpreter_ends_quietly_right_after_loading_has_begun() -> None:
    done = run(BEGIN)
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


LOAD = """
import sys
from pathlib import Path
from etl.kernels import find_normalise_rows, load_kernels
from presave.mapped_rows import COMPILED
assert load_kernels()
assert COMPILED.module is not None
print(find_normalise_rows("numba").__module__)
"""
# Files of this size cannot be written, as on a disk that is nearly full.
FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"


def load_with(cache: Path, before: str = "") -> str:
    """Load all kernels with this cache of numba, and return the warnings."""
    done = run_python("-c", before + LOAD, NUMBA_CACHE_DIR=str(cache))
    assert done.stdout == "etl.kernels.normalise_numba\n", done.stderr
    return done.stderr


def test_a_damaged_cache_of_numba_is_written_anew_and_named_once(tmp_path: Path) -> None:
    assert load_with(tmp_path) == ""
    for pattern, kept in {"mapped_rows*.nbi": 0, "normalise*.nbc": 1000}.items():
        damaged = min(tmp_path.rglob(pattern))
        damaged.write_bytes(damaged.read_bytes()[:kept])
    said = load_with(tmp_path)
    assert said.count("RuntimeWarning: ") == 1
    assert f"numba's cache in {tmp_path} was damaged, and has been written anew: " in said
    assert load_with(tmp_path) == ""


def test_kernels_are_compiled_without_a_cache_if_the_disk_is_full(tmp_path: Path) -> None:
    said = load_with(tmp_path, FULL)
    assert said.count("cannot be used, so each process compiles its loops again") == 1
    assert f"numba's cache in {tmp_path} " in said
    assert "File too large" in said
    assert not list(tmp_path.rglob("*.nbc"))


def test_a_kernel_that_cannot_be_loaded_names_the_cause() -> None:
    program = (
        "def fail(*_, **__): raise AttributeError('no such symbol')\n"
        "import numba; numba.njit = fail\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "from etl.kernels import find_normalise_rows\n"
        "try: find_normalise_rows('numba')\n"
        "except ImportError as error: print(error)"
    )
    assert run(program).stdout == "kernel 'numba' cannot be loaded: no such symbol\n"


WITHOUT_COMPILER = """
from etl.kernels import find_normalise_rows, load_kernels
from presave.mapped_rows import COMPILED
print(load_kernels(), COMPILED.module, find_normalise_rows().__module__)
try:
    find_normalise_rows("numba")
except ImportError as error:
    print(error)
"""


def test_numpys_loops_are_used_if_numbas_compiler_is_turned_off_and_a_warning_says_so() -> None:
    done = run_python("-c", WITHOUT_COMPILER, NUMBA_DISABLE_JIT="1")
    found = ["False None etl.kernels.normalise", "kernel 'numba' cannot be loaded: NUMBA_DISABLE_JIT is set"]
    assert done.stdout.splitlines() == found, done.stderr
    assert "numba cannot be used, so NumPy is used instead: RuntimeError: NUMBA_DISABLE_JIT is set" in done.stderr
