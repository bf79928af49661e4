"""Processes: those that a server started, and the memory, CPU time and bytes read of this process and its children."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

INTERVAL_SECONDS = 0.01
# An environment variable that a server and all processes below it have. It finds those, too, that have left their
# process group, and whose parents have ended.
MARK = "ETL_MEASURING_SERVER"
# They remove what killed processes leave in shared memory, and then end.
CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")


class PeakMemory:
    """A context manager that samples the memory of this process and its children; `nbytes` is the peak.

    A child counts with its proportional set size (PSS), in which a page shared by n processes counts 1/n, so that
    shared memory is counted once. (The kernel's own peak counts it for each process, and ignores children.) This
    process counts with all its resident pages, but only with its share of shared memory. The pages of imports count
    fully: they are shared with the server that it was forked from, but a stand-alone process would have its own.
    A sample is taken every 10 ms, which costs time: do not use it around code that is timed.
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

    def look(self) -> None:
        """Take an additional sample now."""
        own = _value("/proc/self/status", "VmRSS") - _value("/proc/self/status", "RssShmem")
        total = (own + _value("/proc/self/smaps_rollup", "Pss_Shmem")) * 1024
        for child in _children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended after it was listed
                total += child.memory_full_info().pss
        self.nbytes = max(self.nbytes, total)

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self.look()


def peak_resident_nbytes() -> int:
    """Return the most bytes of memory that this process has had since its program was started."""
    return _value("/proc/self/status", "VmHWM") * 1024  # getrusage counts what was there before that, too


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants, including those that have ended."""
    # Unlike os.times, getrusage does not count in ticks.
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for child in _children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def read_nbytes() -> int:
    """Return the bytes that this process and its children have read through system calls, without mapped files."""
    total = 0
    for process in ("self", *(str(child.pid) for child in _children())):
        with contextlib.suppress(OSError):  # it has ended
            total += _value(f"/proc/{process}/io", "rchar")
    return total


def mapped_nbytes() -> dict[str, int]:
    """Return the resident bytes of each file that this process maps, which it shares with others that map it.

    Memory that is no file on disk is left out, such as that of memfd or /dev/zero: others may have other memory of the
    same name.
    """
    found: dict[str, int] = {}
    path = ""
    for line in Path("/proc/self/smaps").read_text(errors="surrogateescape").splitlines():
        columns = line.split(maxsplit=5)
        if not columns[0].endswith(":"):  # of a new mapping; its last column is the file, if there is one
            path = columns[5] if len(columns) > 5 else ""
            if not path.startswith("/") or path.startswith(("/dev/", "/memfd:")) or path.endswith(" (deleted)"):
                path = ""
        elif path and columns[0] == "Rss:":
            found[path] = found.get(path, 0) + int(columns[1]) * 1024
    return found


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the running processes whose environment has `MARK` with the value `mark`."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it has ended, or belongs to another user
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(folder.name)))
    return found


def started_processes() -> list[psutil.Process]:
    """Return the running processes that this one has started, directly or not, except for the helpers of Python.

    In a session of a server, these include daemons, whose parents have ended.
    """
    found = {each.pid: each for each in _children()}
    if MARK in os.environ:
        found |= {each.pid: each for each in marked_processes(os.environ[MARK])}
    excluded = {os.getpid(), os.getppid()}
    return [each for pid, each in found.items() if pid not in excluded and not _is_helper(each)]


def is_cleaner(process: psutil.Process) -> bool:
    """Return True if `process` removes what killed processes leave in shared memory."""
    return any(each in command_of(process) for each in CLEANERS)


def _is_helper(process: psutil.Process) -> bool:
    """Return True for a process that ends with the one that started it."""
    return is_cleaner(process) or "multiprocessing.forkserver" in command_of(process)


def command_of(process: psutil.Process) -> str:
    """Return the command line of `process`, or its name if it has none."""
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "a process that has ended"


def _children() -> Iterator[psutil.Process]:
    yield from psutil.Process().children(recursive=True)


def _value(file: str, name: str) -> int:
    """Return the number called `name` in a file of /proc; memory is in kilobytes."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{file} has no {name}; measuring needs Linux 5.0 or later")
