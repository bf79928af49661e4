"""Samples of what threads do: where in Python, and for how long on a CPU. Worker processes write theirs to files.

Everything here is sampled, so that it costs little: a process is looked at 25 times a second, and fewer batches are
timed if they are short. Worker processes import this module, which needs only psutil and the standard library.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial, partialmethod
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from etl.measuring.places import THIS_PACKAGE, is_users
from etl.runtime.resources import available_nbytes
from etl.temporary import PREFIX, lock_folder
from etl.watching.times import MAX_COST_SHARE, Activity, Fetch, FetchTimer, LoopTimes, Place

INTERVAL_SECONDS = 0.04
# Of looks and batches, a worker process reports so many at first, and then ever fewer: in days some thousand.
ALL_LINES = 256
# A thread whose innermost frame is in one of these files waits for others.
WAITING_FILES = (
    *("/threading.py", "/queue.py", "/selectors.py", "/multiprocessing/connection.py", "/multiprocessing/queues.py"),
    *("/multiprocessing/synchronize.py", "/multiprocessing/popen_fork.py", "/concurrent/futures/thread.py"),
    *("/concurrent/futures/_base.py", "/prefetch/prefetcher.py", "/presave/interrupts.py"),
)
# The file that calls the modules of torch, and the folder of etl's loading threads.
MODULES, PREFETCHERS = "/torch/nn/modules/module.py", f"{THIS_PACKAGE}/prefetch/"
# Functions below which loading begins: what called them is the loop.
BOUNDARIES: set[CodeType] = set()
_is_of_user = lru_cache(maxsize=4096)(is_users)


def find_place(innermost: FrameType | None) -> Place | None:
    """Return the innermost line of the user's code, or of any; None if the thread waits for others."""
    if innermost is None or innermost.f_code in BOUNDARIES or innermost.f_code.co_filename.endswith(WAITING_FILES):
        return None
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code not in BOUNDARIES:
        if _is_of_user(frame.f_code.co_filename):
            return _place(frame)
        frame = frame.f_back
    return _place(innermost)


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    return Place(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname)  # some jumps have no line


def start_sampling(
    look: Callable[[Mapping[int, FrameType]], None],
    ended: threading.Event,
    look_further: Callable[[], None] = lambda: None,
) -> None:
    """Look at all threads of this process now and then, in a thread of its own, until `ended` is set.

    `look` is called with the frame of each thread, by its identifier; then `look_further`, which limits its own cost.
    """
    draw = random.Random()  # not the numbers that the script may have seeded

    def run() -> None:
        pause = INTERVAL_SECONDS
        while not ended.wait(pause * draw.uniform(0.5, 1.5)):  # or it would keep in step with the loop
            began = time.thread_time()
            frames = sys._current_frames()
            frames.pop(threading.get_ident(), None)
            look(frames)
            del frames
            pause = max(INTERVAL_SECONDS, (time.thread_time() - began) / MAX_COST_SHARE)
            look_further()

    threading.Thread(target=run, name="etl-watch", daemon=True).start()


def note_places(activities: Mapping[int, Activity], frames: Mapping[int, FrameType]) -> None:
    """Note the line of each loop or, while it waits, the lines that load: in its thread or in others."""
    for thread, activity in list(activities.items()):
        times, waits, frame = activity.times, activity.waits, frames.get(thread)
        if waits and not times.batches:  # the first batch of all
            continue
        place = find_place(frame)
        if not waits:
            if frame is not None and times.is_in_step:  # not between epochs, nor of a thread that has ended
                times.step_samples += 1
                times.step_waits += place is None
                if place is not None and _is_of_user(frame.f_code.co_filename) and not _is_below(MODULES, frame):
                    times.stepping[place] += 1
        elif place is not None:
            times.loading[place] += 1
            times.loads_here += 1
        elif not times.settings.get("num_workers"):  # worker processes report where they are
            times.loading.update(_other_places({key: each for key, each in frames.items() if key not in activities}))


def _other_places(frames: Mapping[int, FrameType]) -> list[Place]:
    """Return where threads without a loop are: those of etl's loaders or, if none of them works, all."""
    found = [(place, frame) for frame in frames.values() if (place := find_place(frame)) is not None]
    of_etl = [place for place, frame in found if _is_below(PREFETCHERS, frame)]
    return of_etl or [place for place, _ in found]


def _is_below(path: str, frame: FrameType | None) -> bool:
    """Return True if `path` is a part of the path of the frame's file, or of one that called it."""
    while frame is not None and path not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


class MemoryWatch:
    """Notes how much memory is left, and how much this process and its children have, as often as that costs little."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, int, int]] = []
        self._next = 0.0

    def look(self) -> None:
        """Look if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self.notes.append((now, available_nbytes(), _resident_nbytes()))
        if len(self.notes) > 600:
            del self.notes[1:-1:2]
        took = time.monotonic() - now
        self._next = now + min(2.0, max(0.5, took / MAX_COST_SHARE))  # the first look takes longest


def _resident_nbytes() -> int:
    """Return the bytes that this process has, and those processes that its threads have started."""
    processes, pages = ["self"], 0
    tasks = Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.is_dir() else ():  # only Linux has it
        with contextlib.suppress(OSError):  # it has ended, or this kernel does not tell
            processes += (task / "children").read_text().split()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


class WorkerReports:
    """A temporary folder in which worker processes report their batches and where they are."""

    def __init__(self) -> None:
        self._folder = ""
        self._lock = contextlib.ExitStack()
        self._read: dict[Path, int] = {}

    @contextlib.contextmanager
    def of(self, loader: Any, times: LoopTimes) -> Iterator[None]:
        """Let the workers report that a torch DataLoader starts in the block."""
        torch_data = sys.modules.get("torch.utils.data")
        of_user, is_replaced = None, False
        with contextlib.suppress(Exception):  # the disk is full, or a subclass does not let its function be replaced
            if torch_data is not None and isinstance(loader, torch_data.DataLoader) and loader.num_workers:
                if not self._folder:
                    self._folder, self._lock = lock_folder(tempfile.mkdtemp(prefix=f"{PREFIX}watch-"))
                of_user = loader.worker_init_fn
                loader.worker_init_fn = partial(report_worker, f"{self._folder}/{id(times)}", of_user)
                is_replaced = True
        try:
            yield
        finally:
            if is_replaced:
                loader.worker_init_fn = of_user

    def read(self, times: LoopTimes) -> None:
        """Add what workers have reported of these loops since the last call."""
        for path in Path(self._folder).glob(f"{id(times)}-*") if self._folder else ():
            with contextlib.suppress(OSError), path.open(errors="replace") as file:  # something has removed it
                file.seek(self._read.get(path, 0))
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):  # it is being written
                        break
                    self._read[path] = file.tell()
                    kind, *fields = line.rstrip("\n").split("\t")
                    with contextlib.suppress(ValueError, TypeError, IndexError):  # a full disk has cut a line short
                        if kind == "fetch":
                            times.fetches.append(Fetch._make(map(float, fields)))
                        else:
                            times.loading[Place(fields[0], int(fields[1]), fields[2])] += 1

    def close(self) -> None:
        """Remove the folder."""
        self._lock.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def report_worker(prefix: str, of_user: Callable[[int], Any] | None, number: int) -> None:
    """Report to a file what this worker process of a torch DataLoader does, and do what the user's function does."""
    with contextlib.suppress(Exception):  # the disk is full: the user's worker goes on without reports
        _start_reports(prefix)
    if of_user is not None:
        of_user(number)


def _start_reports(prefix: str) -> None:
    from torch.utils.data._utils import fetch, worker

    file = os.open(f"{prefix}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    BOUNDARIES.add(worker._worker_loop.__code__)
    main, timer, write = threading.get_ident(), FetchTimer(time.process_time), line_writer(file)
    is_warm = threading.Event()  # after the first batch, which imports, opens and allocates

    def timed(fetcher: Any, load: Callable[..., Any], indices: Any) -> Any:
        if not is_warm.is_set() or time.perf_counter() < timer.due:
            batch = load(fetcher, indices)
            is_warm.set()
            return batch
        batch, times = timer.take(partial(load, fetcher, indices))
        write("fetch", *times)
        return batch

    def look(frames: Mapping[int, FrameType]) -> None:
        place = find_place(frames.get(main))
        if place is not None and is_warm.is_set():
            write("at", *place)

    kinds: Any = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    for kind in kinds:
        kind.fetch = partialmethod(timed, kind.fetch)
    start_sampling(look, threading.Event())


def line_writer(file: int) -> Callable[..., None]:
    """Return a function that writes a line to `file` in all of its first calls, and in ever fewer of later ones."""
    numbers, draw = itertools.count(1), random.Random()

    def write(*fields: object) -> None:
        if draw.random() * next(numbers) < ALL_LINES:
            with contextlib.suppress(OSError):  # the disk is full: what was watched counts
                os.write(file, ("\t".join(map(str, fields)) + "\n").encode())

    return write
