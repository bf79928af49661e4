"""Peak memory and bytes read, as the kernel counts them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from etl.comparison.process_memory import peak_memory, reset_peak_memory

NBYTES = 200 << 20
# What a test's own objects may take beside.
LITTLE = 20 << 20


def test_an_allocation_shows_in_the_peak_after_it_was_freed_until_the_peak_is_reset() -> None:
    reset_peak_memory()
    before = peak_memory()
    filled = np.ones(NBYTES, np.uint8)
    del filled
    assert peak_memory() - before >= NBYTES - LITTLE
    reset_peak_memory()
    assert peak_memory() - before <= LITTLE


def test_memory_that_is_only_reserved_does_not_count() -> None:
    reset_peak_memory()
    before = peak_memory()
    reserved = np.empty(NBYTES, np.uint8)
    assert peak_memory() - before <= LITTLE
    del reserved


def test_a_child_that_runs_counts_with_its_own_peak_and_one_that_has_ended_no_more() -> None:
    reset_peak_memory()
    before = peak_memory()
    script = f"import sys; filled = b'1' * {NBYTES}; del filled; print('filled', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"filled\n"
        assert peak_memory() - before >= NBYTES
    assert peak_memory() - before <= LITTLE
