"""Processes: those that a server started, and the memory, CPU time and bytes read of this process and its children."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import resource
import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing import Self

INTERVAL_SECONDS = 0.01
# Maps are listed this seldom while pages of files are added; at once if there are fewer.
LISTING_INTERVALS = 10
# An environment variable that a server and all processes below it have. It finds those, too, that have left their
# process group, and whose parents have ended.
MARK = "ETL_MEASURING_SERVER"
# They remove what killed processes leave in shared memory, and then end.
CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
NUMBER = re.compile(r"^(\w+):\s+(\d+)(?: kB)?$", re.MULTILINE)
# A mapped file in /proc/PID/smaps: its device, inode and path; resident, proportional and anonymous kilobytes.
MAPPING = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ (\S+ \d+ +/.*)\n"
    rb"(?:[A-Z].*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB\n(?:[A-Z].*\n)*?Anonymous: +(\d+)",
    re.MULTILINE,
)
ELF = b"\x7fELF"
# What is here and not a library, such as locales, comes with the environment, too.
SYSTEM_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/")


class PeakMemory:
    """A context manager that samples the memory of this process and its children; `nbytes` is the peak.

    Anonymous memory (heaps, stacks, arrays), shared memory, and the resident pages of mapped data files count. Pages of
    programs and libraries do not: how many of them are resident depends on the page cache, not on the loader. Page
    tables and memory that was swapped out do not count either.

    The anonymous memory of this process counts fully, with the pages of imports that it shares with the server that it
    was forked from: a stand-alone process would have its own. A child counts with its proportional set size (PSS), in
    which a page shared by n processes counts 1/n, so that what was not copied on write is not counted for each. (The
    kernel's own peak counts it for each process, and ignores children.) Shared memory counts with its PSS in all of
    them, a data file as in `mapped_nbytes`.
    A sample is taken every 10 ms, which costs time: do not use it around code that is timed.
    """

    def __init__(self) -> None:
        for file, name in (("status", "RssAnon"), ("smaps_rollup", "Pss_Shmem")):
            _value(file, name)  # an error now, or each sample would leave out what the kernel does not tell
        self.nbytes = 0
        self._mapped_nbytes = 0
        self._file_pages: dict[int, int] = {}
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Take an additional sample now."""
        self._look(lists_maps=True)

    def _look(self, lists_maps: bool) -> None:
        with self._looking:
            total, own, file_pages = 0, os.getpid(), {}
            for pid in (own, *(child.pid for child in children())):
                with contextlib.suppress(OSError):  # it ended after it was listed
                    status = _values(f"/proc/{pid}/status")
                    if "RssAnon" not in status:  # it has just ended
                        continue
                    if pid != own or status["RssShmem"]:
                        shares = _values(f"/proc/{pid}/smaps_rollup")
                        total += shares["Pss_Shmem"] + (status["RssAnon"] if pid == own else shares["Pss_Anon"])
                    else:
                        total += status["RssAnon"]
                    file_pages[pid] = status["RssFile"]
            # Listing maps takes longer than the rest, and what several processes have of a file depends on all of them.
            have_fewer = any(file_pages.get(pid, 0) < pages for pid, pages in self._file_pages.items())
            if have_fewer or (lists_maps and file_pages != self._file_pages):
                self._file_pages, self._mapped_nbytes = file_pages, sum(_mapped_nbytes(file_pages).values())
            self.nbytes = max(self.nbytes, total * 1024 + self._mapped_nbytes)

    def _sample(self) -> None:
        for number in itertools.count():
            if self._ended.wait(INTERVAL_SECONDS):
                return
            self._look(lists_maps=number % LISTING_INTERVALS == 0)


def peak_resident_nbytes() -> int:
    """Return the most bytes of memory that this process has had since its program was started."""
    return _value("status", "VmHWM") * 1024  # getrusage counts what was there before that, too


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants, including those that have ended."""
    # Unlike os.times, getrusage does not count in ticks.
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for child in children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def read_nbytes() -> int:
    """Return the bytes that this process and its children have read through system calls, without mapped files."""
    total = 0
    for process in ("self", *(child.pid for child in children())):
        with contextlib.suppress(OSError):  # it has ended
            total += _values(f"/proc/{process}/io")["rchar"]
    return total


def children_nbytes() -> int:
    """Return the resident bytes that the children of this process have besides its own, shared memory counted once."""
    own = _value("status", "RssShmem") - _value("smaps_rollup", "Pss_Shmem")
    total = -own * 1024
    for child in children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended after it was listed
            total += child.memory_full_info().pss
    return max(0, total)


def mapped_nbytes() -> dict[str, int]:
    """Return the resident bytes of each data file that this process and its children map, by device, inode and path.

    What several of them have of a file counts once. What others have of it, such as other ranks, takes nothing off.
    Files in shared memory are left out: they count as shared memory.
    """
    return _mapped_nbytes((os.getpid(), *(child.pid for child in children())))


def _mapped_nbytes(pids: Iterable[int]) -> dict[str, int]:
    largest: dict[str, int] = defaultdict(int)
    shares: dict[str, int] = defaultdict(int)
    for pid in pids:
        resident: dict[str, int] = defaultdict(int)
        with contextlib.suppress(OSError):  # it has ended
            for name, *numbers in MAPPING.findall(Path(f"/proc/{pid}/smaps").read_bytes()):
                rss, pss, anonymous = map(int, numbers)
                file = os.fsdecode(name)
                if rss > anonymous and _is_data(file):  # pages of a private map that were written to are anonymous
                    resident[file] += (rss - anonymous) * 1024
                    shares[file] += max(0, pss - anonymous) * 1024
        for file, nbytes in resident.items():
            largest[file] = max(largest[file], nbytes)
    # The shares are exact if no other process maps the file, and too small otherwise.
    return {file: max(nbytes, shares[file]) for file, nbytes in largest.items()}


@functools.lru_cache(maxsize=4096)
def _is_data(file: str) -> bool:
    """Return True for a mapped file on disk, unless it is a program, a library, or in a folder of those."""
    device, _, path = file.split(maxsplit=2)
    if device in _shared_memory_devices():
        return False
    if path.startswith(SYSTEM_FOLDERS) or any(each in path for each in PACKAGE_FOLDERS):
        return False
    try:
        with Path(path).open("rb") as opened:
            return opened.read(len(ELF)) != ELF
    except OSError:  # it was removed, or belongs to another user
        return True


@functools.cache
def _shared_memory_devices() -> frozenset[str]:
    """Return the devices of files in memory, as in /proc/PID/maps."""
    # Anonymous shared memory is of a file system that is not in the list of mounts.
    descriptor = os.memfd_create("device")
    device = os.fstat(descriptor).st_dev
    os.close(descriptor)
    found = {f"{os.major(device):02x}:{os.minor(device):02x}"}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        if line.partition(" - ")[2].startswith(("tmpfs ", "devtmpfs ")):
            major, minor = line.split()[2].split(":")
            found.add(f"{int(major):02x}:{int(minor):02x}")
    return frozenset(found)


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
    found = {each.pid: each for each in children()}
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


def children() -> list[psutil.Process]:
    """Return the running processes below this one."""
    return psutil.Process().children(recursive=True)


def _value(file: str, name: str) -> int:
    """Return a number in a file of /proc/self; raise `RuntimeError` if this kernel does not tell it."""
    values: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        values = _values(f"/proc/self/{file}")
    if name not in values:
        raise RuntimeError(
            f"/proc/self/{file} has no {name}; measuring needs Linux 5.4 or later with CONFIG_PROC_PAGE_MONITOR"
        )
    return values[name]


def _values(file: str) -> dict[str, int]:
    """Return all numbers in a file of /proc by name; memory is in kilobytes."""
    return {name: int(number) for name, number in NUMBER.findall(Path(file).read_text())}
