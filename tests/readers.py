"""What tests ask of sources that keep files open."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

LIMIT_SECONDS = 60


def descriptors_below(root: Path) -> list[Path]:
    # The descriptor of the listing itself is gone by the time it is looked at.
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in targets if target.is_relative_to(root)]


def open_files_below(root: Path) -> list[Path]:
    """The files that are open, and those that are mapped, which need no descriptor."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
    mapped = [Path(line.split(maxsplit=5)[5]) for line in lines]
    return [*descriptors_below(root), *(path for path in mapped if path.is_relative_to(root))]


def assert_threads_and_a_fork_read(read: Callable[[int], object], expected: list[object]) -> None:
    """Have `read(number)` give what is `expected` in four threads at once, and in a forked process at the same time."""
    faults: list[int] = []

    def read_all(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(expected)).tolist()
        faults.extend(number for number in order if read(number) != expected[number])

    threads = [threading.Thread(target=read_all, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_SECONDS)
        code = 1
        try:
            read_all(7)
            code = len(faults)
        finally:  # whatever it raises, no further line of the tests is run here
            os._exit(code)
    read_all(8)
    assert os.waitpid(child, 0)[1] == 0
    assert faults == []
