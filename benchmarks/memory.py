"""Peak memory of a process and all its children."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

INTERVAL_SECONDS = 0.01


class PeakMemory:
    """A context manager that samples the memory of this process and its children, every 10 ms; `nbytes` is the peak.

    Children count with their proportional set size (PSS), in which a page shared by n processes counts 1/n, so that
    shared memory is counted once; the peak that the kernel keeps does not see children. This process counts with all
    its resident pages except shared memory, of which its share: it was forked from a server and shares the pages of
    the imports with that, which a process of its own would have for itself. Sampling costs time: keep it out of timed
    regions.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.look()

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self.look()

    def look(self) -> None:
        """Sample now, too."""
        process = psutil.Process()
        own = _kilobytes("/proc/self/status", "VmRSS") - _kilobytes("/proc/self/status", "RssShmem")
        total = (own + _kilobytes("/proc/self/smaps_rollup", "Pss_Shmem")) * 1024
        for child in process.children(recursive=True):
            try:
                total += child.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue  # it ended between being listed and being read
        self.nbytes = max(self.nbytes, total)


def _kilobytes(file: str, name: str) -> int:
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{file} has no {name}; peak memory needs Linux 5.0 or later")
