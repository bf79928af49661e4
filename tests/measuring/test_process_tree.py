"""Memory and bytes read include this process and its children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from etl.measuring.process_tree import PeakMemory, read_nbytes

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


def test_bytes_that_are_read_are_counted_and_again_when_they_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "read"
    path.write_bytes(bytes(5 << 20))
    before = read_nbytes()
    path.read_bytes()
    once = read_nbytes() - before
    path.read_bytes()
    assert 5 << 20 <= once < 6 << 20
    assert read_nbytes() - before >= 10 << 20


def test_bytes_that_a_child_has_read_are_counted_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "read"
    path.write_bytes(bytes(5 << 20))
    before = read_nbytes()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    assert read_nbytes() - before >= 5 << 20
