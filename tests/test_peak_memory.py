"""Peak memory counts this process and its children, and is over when it is over."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from benchmarks.memory import PeakMemory

MEGABYTE = 1 << 20
HOLD_100_MB = "import sys; data = b'x' * (100 << 20); print('ready', flush=True); sys.stdin.readline()"


def test_memory_that_was_freed_again_is_in_the_peak() -> None:
    with PeakMemory() as before:
        pass
    with PeakMemory() as during:
        held = np.ones(200 * MEGABYTE, np.uint8)
        during.look()
        del held
    assert 190 * MEGABYTE < during.nbytes - before.nbytes < 260 * MEGABYTE


def test_the_memory_of_a_child_is_in_the_peak() -> None:
    with PeakMemory() as before:
        pass
    with (
        PeakMemory() as during,
        subprocess.Popen([sys.executable, "-c", HOLD_100_MB], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        during.look()
        child.stdin.close()
    assert 100 * MEGABYTE < during.nbytes - before.nbytes < 160 * MEGABYTE
