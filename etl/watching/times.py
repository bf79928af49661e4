"""The times of running loops: waits for batches and the steps between them, by loader."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident, get_native_id
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from etl.measuring.waiting import Task, WaitTimes, WaitWatch

# Steps are summed in at most so many blocks: an interval needs no more. Then pairs of blocks are joined.
MOST_BLOCKS = 512
# So many of the last fetches are kept.
KEPT = 4096
# At most this share of the time goes into each way of looking.
MAX_COST_SHARE = 0.0005


class Place(NamedTuple):
    """A line of Python, and the function that it is in."""

    file: str
    line: int
    function: str


class Fetch(NamedTuple):
    """A batch that one thread has loaded: its seconds, those on a CPU, and those ready for one."""

    seconds: float
    used: float
    queued: float


@dataclass(slots=True)
class Block:
    """Consecutive steps: seconds of their waits, without those for first batches, their own, and their number."""

    waits: float = 0.0
    steps: float = 0.0
    count: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Block]) -> Block:
        """Return consecutive blocks as one."""
        return cls(
            sum(each.waits for each in parts), sum(each.steps for each in parts), sum(each.count for each in parts)
        )


@dataclass(slots=True)
class LoopTimes:
    """The loops over one loader, or over those that replace each other. Times are in seconds."""

    name: str
    # Settings of the loader, such as `num_workers`.
    settings: Mapping[str, Any]
    # Waits for the first batch of each epoch, with the start of its workers.
    starts: list[float] = field(default_factory=list)
    # All other waits, and all steps but the first.
    blocks: list[Block] = field(default_factory=lambda: [Block()])
    batches: int = 0
    # Records in the first batch of the last epoch; 1 if they cannot be counted.
    batch_records: int = 1
    # The last wait, and the thread that waited.
    wait: float = 0.0
    thread: int = 0
    # Some of the batches that one thread loaded: that of the loop, or those of worker processes.
    fetches: deque[Fetch] = field(default_factory=lambda: deque(maxlen=KEPT))
    # What other threads did while the loop waited, for each epoch in which that is known.
    lost: list[WaitTimes] = field(default_factory=list)
    # Samples of where the loading threads were while the loop waited, and how many were in the loop's own thread.
    loading: Counter[Place] = field(default_factory=Counter)
    loads_here: int = 0
    # Samples of steps: those at a user's line that calls nothing else in Python and is in no model, those in which the
    # thread waits for others, and all.
    stepping: Counter[Place] = field(default_factory=Counter)
    step_waits: int = 0
    step_samples: int = 0
    watch: WaitWatch | None = None
    # Batches of an epoch if the loader goes on with the next one without saying so; otherwise 0.
    epoch_length: int = 0
    # Epochs that have ended. One that was left with its first batch does not count: it was a look at the data.
    epochs: int = 0
    # True if the script makes a new loader for an epoch.
    is_remade: bool = False
    _block_steps: int = 1
    # Since when the loop is in a step, and how long its thread had waited for all loaders by then; None between epochs.
    _resumed: tuple[float, float] | None = None
    # How long this epoch has waited for its first batch so far; None after that.
    _starting: float | None = 0.0
    # Batches of this epoch so far, and the last step that was counted.
    _taken: int = 0
    _step: float = 0.0
    # When the first epoch began, and what watching other threads has taken since.
    _began: float = 0.0
    _cost: float = 0.0

    @property
    def waited(self) -> float:
        """All waits but the first of all, which a long training has once, too."""
        return sum(each.waits for each in self.blocks) + sum(self.starts[1:])

    @property
    def stepped(self) -> float:
        """All steps but the first, which a long training has once, too."""
        return sum(each.steps for each in self.blocks)

    @property
    def is_in_step(self) -> bool:
        """True if a batch has come, and the loop has not asked for the next one."""
        return self._resumed is not None

    def note_start(self, seconds: float) -> None:
        """Note that an epoch begins, `seconds` of whose first wait have passed."""
        if self._resumed is not None:  # an epoch was left in a step, as Lightning leaves it, whose end is unknown
            self.blocks[-1].steps += self._step
        self.epochs += self._taken > 1
        self._starting, self._resumed, self._taken = seconds, None, 0
        self.end_watch()
        began = perf_counter()
        self._began = self._began or began
        if self._cost <= MAX_COST_SHARE * (began - self._began):
            self.watch = WaitWatch(MAX_COST_SHARE).__enter__()
            self._cost += perf_counter() - began

    def note_step(self, now: float, waited: float) -> float | None:
        """Note that the loop asks for a batch, after `waited` seconds for all loaders; return its step, if any."""
        if self._resumed is None:
            return None
        if self.epoch_length and self._taken == self.epoch_length:
            self.note_start(0.0)
            return None
        since, before = self._resumed
        step, self._resumed = now - since - (waited - before), None
        if self.batches > 1:  # the first step of all imports, allocates and compiles
            self.blocks[-1].steps += step
            self._step = step
        return step

    def note_batch(self, wait: float, now: float, waited: float, batch: Any) -> None:
        """Note a batch that has come after `wait` seconds."""
        if self.blocks[-1].count >= self._block_steps:
            if len(self.blocks) == MOST_BLOCKS:
                self.blocks = [Block.joined(pair) for pair in zip(self.blocks[::2], self.blocks[1::2], strict=True)]
                self._block_steps *= 2
            self.blocks.append(Block())
        block = self.blocks[-1]
        if self._starting is None:
            block.waits += wait
        else:
            self.starts.append(self._starting + wait)
            self._starting = None
            with contextlib.suppress(Exception):  # a structure that etl does not know
                from etl.measuring.structure import record_count  # here, since it loads numpy

                self.batch_records = record_count(batch)
        block.count += 1
        self.batches += 1
        self._taken += 1
        self.wait, self._resumed = wait, (now, waited)

    def note_end(self, wait: float) -> None:
        """Note that the epoch has ended, after another wait."""
        self.blocks[-1].waits += wait
        self.epochs += self._taken > 0
        self._starting, self._taken = 0.0, 0
        self.end_watch()

    def end_watch(self) -> None:
        """Look no more at what other threads do in this epoch."""
        began, watch, self.watch = perf_counter(), self.watch, None
        if watch is not None:
            watch.__exit__()
            lost = watch.times()
            if lost is not None:
                self.lost.append(lost)
            self._cost += perf_counter() - began


class FetchTimer:
    """Times some of the batches that the calling thread loads, if the kernel tells its times on a CPU.

    Processes that end meanwhile, such as a decoder, count. `cpu_time` is that of the thread; in a process that only
    loads it is `time.process_time`, with threads that a library starts.
    """

    def __init__(self, cpu_time: Callable[[], float] = thread_time) -> None:
        self._cpu_time = cpu_time
        self._task: Any = None
        # When another batch may be timed without taking too large a share of the time.
        self.due = math.inf
        with contextlib.suppress(OSError):
            self._task = Task(f"{os.getpid()}/task/{get_native_id()}")
            self.due = perf_counter()

    def take(self, fetch: Callable[[], Any]) -> tuple[Any, Fetch]:
        """Return `fetch()` and its times; it must be due."""
        asked = perf_counter()
        self._task.used = self._task.queued = 0.0
        self._task.begin()
        used, began = self._used(), perf_counter()
        batch = fetch()
        ended, used = perf_counter(), self._used() - used
        self._task.end()
        self.due += (began - asked + perf_counter() - ended) / MAX_COST_SHARE
        return batch, Fetch(ended - began, min(used, ended - began), self._task.queued)

    def _used(self) -> float:
        import resource  # here, because Windows has none

        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self._cpu_time() + children.ru_utime + children.ru_stime


@dataclass(slots=True)
class Activity:
    """The loop of a thread: the loader that it has last asked, if it waits for it, and its waits for all loaders."""

    times: LoopTimes
    waits: bool = False
    waited: float = 0.0
    timer: FetchTimer = field(default_factory=FetchTimer)

    def end(self, began: float) -> float:
        """Return the seconds of a wait since `began`, which is over."""
        wait = perf_counter() - began
        self.waits = False
        self.waited += wait
        return wait


class LoopClock:
    """Times the loops of all threads. Of nested loaders only the outermost counts.

    `before` is called when a loop asks for a batch or begins an epoch, with its times and the seconds of the last step.
    """

    def __init__(self, before: Callable[[LoopTimes, float | None], None] | None = None) -> None:
        self.activities: dict[int, Activity] = {}  # by identifier of the thread
        self._before = before

    @property
    def is_waiting(self) -> bool:
        """True if this thread waits for a batch already: what it asks now is a part of that."""
        here = self.activities.get(get_ident())
        return here is not None and here.waits

    @property
    def is_in_epoch(self) -> bool:
        """True if any thread is in an epoch."""
        return any(each.waits or each.times.is_in_step for each in list(self.activities.values()))

    def start(self, times: LoopTimes, begin: Callable[[], Any]) -> Any:
        """Return `begin()`, which begins an epoch."""
        here = self.activities.get(get_ident()) or self._begin_thread(times)
        if here.waits:
            return begin()
        if self._before is not None:
            self._before(times, None)
        here.times, here.waits = times, True
        began = perf_counter()
        try:
            return begin()
        finally:
            times.note_start(here.end(began))

    def take(self, times: LoopTimes, ask: Callable[[], Any]) -> Any:
        """Return `ask()`, the next batch; a `StopIteration` ends the epoch.

        It runs once per batch, usually with cold caches, so keep its calls few.
        """
        thread = get_ident()
        here = self.activities.get(thread) or self._begin_thread(times)
        if here.waits:
            return ask()
        times.thread = thread
        asked = perf_counter()
        step = times.note_step(asked, here.waited)
        if self._before is not None:
            self._before(times, step)
        watch = times.watch if times.watch is not None and times.watch.begin() else None
        here.times, here.waits = times, True
        began = perf_counter()
        try:
            is_timed = times.batches and not times.settings.get("num_workers")  # not the first of all
            if is_timed and asked >= here.timer.due:
                batch, fetch = here.timer.take(ask)
                times.fetches.append(fetch)
            else:
                batch = ask()
        except BaseException as error:
            wait = here.end(began)
            if isinstance(error, StopIteration):
                times.note_end(wait)
            raise
        wait = here.end(began)
        if watch is not None:
            watch.end()
        times.note_batch(wait, began + wait, here.waited, batch)
        return batch

    def _begin_thread(self, times: LoopTimes) -> Activity:
        here = self.activities[get_ident()] = Activity(times)
        return here
