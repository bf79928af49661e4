"""Importing the packages loads little, and a fork meanwhile does no harm."""

from __future__ import annotations

import os

import pytest

from tests.programs import output_of

# A fork at each of ten moments while another thread imports an iterator; the child uses it, too.
PROGRAM = """
import faulthandler, os, threading, time
import presave, torch, etl

for moment in range(10):
    program = os.fork()
    if program == 0:
        thread = threading.Thread(target=lambda: etl.AsyncIterator)
        thread.start()
        time.sleep(moment * 0.02)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(60, exit=True)
            etl.AsyncIterator
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        thread.join()
        os._exit(status != 0)
    assert os.waitpid(program, 0)[1] == 0, f"the child forked at moment {moment} hung"
"""


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("presave", {"torch", "etl", "benchmarks", "PIL", "rich"}),
        ("etl", {"torch", "benchmarks", "skimage", "sklearn"}),
        ("etl.commands", {"torch", "benchmarks", "skimage", "sklearn"}),
    ],
)
def test_importing_a_package_loads_nothing_heavy_and_nothing_above_it(module: str, unwanted: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    assert not unwanted & set(output_of("-c", program).split())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_forked_during_the_first_use_of_a_name_can_use_it_too() -> None:
    # With one BLAS thread, or numpy has others as soon as it is imported.
    output_of("-c", PROGRAM, OPENBLAS_NUM_THREADS="1")
