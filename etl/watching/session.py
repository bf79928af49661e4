"""All loops of this process that are watched, and what is known about them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from etl.watching.stacks import BOUNDARIES, MemoryWatch, WorkerReports, note_places, start_sampling
from etl.watching.times import LoopClock, LoopTimes

# The kind of data set of a torch DataLoader is 1 for an IterableDataset, and 0 for others.
SETTINGS = (
    *("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size", "threads", "processes"),
    "_dataset_kind",
)
# Loaders of one class are told apart by the classes of these parts, their length and their settings.
PARTS = ("dataset", "records", "sampler")


class Session:
    """Times the loops of this process, and samples where they are, from `start` to `stop`."""

    def __init__(self, before: Callable[[LoopTimes, float | None], None] | None = None) -> None:
        self.clock = LoopClock(before)
        self.loops: list[LoopTimes] = []  # one for each loader, with those that it replaces
        self.memory = MemoryWatch()
        self.reports = WorkerReports()
        # True if the process is about to end, because a thread has reached a limit or all is reported.
        self.is_over = False
        self._loaders: list[_Loader] = []
        self._ended = threading.Event()
        self._owner = os.getpid()
        self._began: float | None = None

    @property
    def is_here(self) -> bool:
        """False in a fork of the process, such as a worker of a DataLoader."""
        return os.getpid() == self._owner

    @property
    def seconds(self) -> float:
        """Seconds since the first loop began."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def start(self) -> None:
        """Begin to sample."""
        start_sampling(lambda frames: note_places(self.clock.activities, frames), self._ended, self.look_at_memory)

    def look_at_memory(self) -> None:
        """Note how much memory is left, in epochs only: a loop that has ended gives back what its loader had."""
        if self.clock.is_in_epoch:
            self.memory.look()

    def stop(self) -> None:
        """Sample no more, and read what worker processes have reported. The garbage collector may call this."""
        if self.is_here:
            self._ended.set()
            self.read()
            self.reports.close()

    def read(self) -> None:
        """Read what worker processes have reported since the last call."""
        for times in self.loops:
            self.reports.read(times)

    def times_of(self, loader: Any) -> LoopTimes:
        """Return the times of the loops over a loader, and over those that it replaces."""
        if self._began is None:
            self._began = time.perf_counter()
        found = next((each for each in self._loaders if each.last() is loader), None)
        if found is None:
            settings = {name: value for name in SETTINGS if isinstance(value := _told(getattr, loader, name), Integral)}
            dataset = _told(getattr, loader, "dataset")
            length = _told(len, loader if dataset is None else dataset)
            kind = type(loader), length, *(type(_told(getattr, loader, name)) for name in PARTS), *settings.items()
            last = _told(weakref.ref, loader) or (lambda: loader)  # a list has no weak reference

            def is_replaced(other: Any) -> bool:
                # An iterator may be one of two alike until it is gone, and so may a stream without a length, such as
                # that of validation. Trainers keep the DataLoaders that they replace.
                is_same = length is not None or _told(getattr, other, "dataset") is dataset
                return other is None or (dataset is not None and is_same)

            found = next((each for each in self._loaders if each.kind == kind and is_replaced(each.last())), None)
            if found is None:
                inner = "" if dataset is None else f" of {type(dataset).__name__}"
                found = _Loader(kind, LoopTimes(f"{type(loader).__name__}{inner}", settings), last)
                self._loaders.append(found)
                self.loops.append(found.times)
            elif found.last() is None:  # and not one of two that are alike
                found.times.is_remade = True
            found.last = last
        return found.times

    def epoch(self, loader: Any, iterate: Callable[[Any], Iterator[Any]] = iter, owner: object = None) -> Iterator[Any]:
        """Return the batches of an epoch, which `iterate(loader)` begins; `owner` lives as long as they do."""
        if not self.is_here or self.clock.is_waiting:  # in a fork, or for a loader around this one
            return iterate(loader)
        times = self.times_of(loader)
        with self.reports.of(loader, times):
            return _Epoch(self, times, lambda: iterate(loader), owner)


@dataclass(slots=True)
class _Loader:
    """The last of the loaders that a script makes one after another for the same loop, and the times of all."""

    kind: tuple[Any, ...]
    times: LoopTimes
    # Returns the last one; None if it is gone.
    last: Callable[[], Any]


def _told(ask: Callable[..., Any], *of: Any) -> Any:
    """Return `ask(*of)`, or None if that fails: a user's loader may raise anything when it is looked at."""
    with contextlib.suppress(Exception):
        return ask(*of)
    return None


class _Epoch(Iterator[Any]):
    """An epoch that is timed."""

    def __init__(self, session: Session, times: LoopTimes, begin: Callable[[], Iterable[Any]], owner: object) -> None:
        self._take, self._times, self._owner = session.clock.take, times, owner
        self._batches = session.clock.start(times, begin)

    def __next__(self) -> Any:
        return self._take(self._times, self._batches.__next__)

    def __len__(self) -> int:
        batches: Any = self._batches
        return len(batches)

    def __bool__(self) -> bool:
        return bool(self._batches)  # which may have no length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


BOUNDARIES.add(_Epoch.__next__.__code__)
