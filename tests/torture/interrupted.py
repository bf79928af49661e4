"""Interrupts at random moments of every kind of iterator: `python -m tests.torture.interrupted KIND TIMES FOLDER`.

It prints how many interrupts there were, how many of them the main thread did not see, and what went wrong.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import etl
import presave
from tests.leftovers import Leftovers

RECORDS, BATCH_SIZE = 256, 16
# A run that hangs ends with the stacks of its threads.
HANG_SECONDS = 30
NOTHING = etl.Pipeline([])


class Records:
    """Records that are large enough for memory that is used again."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.full(2000, index, np.float32), "label": index}


class Own:
    """A user's iterable of batches."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(0, RECORDS, BATCH_SIZE):
            labels = np.arange(first, first + BATCH_SIZE)
            yield np.repeat(labels[:, None], 2000, 1).astype(np.float32), labels


def raw(reuse: bool = True) -> etl.RawIterator:
    return etl.RawIterator(Records(), NOTHING, BATCH_SIZE, shuffle=True, reuse=reuse)


def processes(start_method: str, reuse: bool = True) -> etl.AsyncIterator:
    return etl.AsyncIterator(raw(reuse), workers="process", processes=2, start_method=start_method)


def presaved(folder: Path, **options: Any) -> etl.AsyncIterator:
    path = folder / "store"
    if not path.exists():
        presave.write(path, Records()).close()
    return etl.AsyncIterator(etl.PresavedIterator(path, NOTHING, BATCH_SIZE, shuffle=True), **options)


KINDS: dict[str, Callable[[Path], Any]] = {
    "threads": lambda _: etl.AsyncIterator(raw(), threads=2),
    "forkserver": lambda _: processes("forkserver"),
    "forkserver, fresh memory": lambda _: processes("forkserver", reuse=False),
    "spawn": lambda _: processes("spawn"),
    "whole batches": lambda _: etl.AsyncIterator(Own()),
    "device": lambda _: etl.DeviceIterator(etl.AsyncIterator(raw(), threads=2), "cpu"),
    "device, processes": lambda _: etl.DeviceIterator(processes("forkserver"), "cpu"),
    "torch data set": lambda _: etl.TorchDataset(etl.AsyncIterator(raw(), threads=2)),
    "presaved": lambda folder: presaved(folder, threads=2),
    "presaved, processes": lambda folder: presaved(folder, workers="process", processes=2),
    "no prefetching": lambda _: etl.AsyncIterator(raw(), 0),
}


class Interrupts:
    """Interrupts of the main thread, which are counted."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.sent = self.seen = 0
        self.unraisable: Counter[str] = Counter()
        signal.signal(signal.SIGALRM, self._interrupt)
        sys.unraisablehook = self._count

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.sent += 1
        raise KeyboardInterrupt

    def _count(self, unraisable: Any) -> None:
        self.unraisable[f"{unraisable.exc_value!r} in {unraisable.object!r}"] += 1

    def during(self, run: Callable[[], object], seconds: float) -> None:
        """Interrupt `run` within `seconds`."""
        try:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-4, seconds))
            run()
            time.sleep(seconds)
        except KeyboardInterrupt:
            self.seen += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def contents(iterator: Any) -> list[bytes]:
    """The features of an epoch that a loop would train on, in order."""
    return [np.asarray(batch[0] if isinstance(batch, tuple) else batch.features).tobytes() for batch in iterator]


def leave_early(iterator: Any, batches: int) -> None:
    for number, _ in enumerate(iterator):
        if number == batches:
            break


def first_epoch(iterator: Any) -> list[bytes]:
    iterator.set_epoch(0)
    return contents(iterator)


def close(iterator: Any) -> None:
    getattr(iterator, "iterator", iterator).close()


def main(kind: str, times: int, folder: Path) -> None:
    interrupts, faults = Interrupts(kind), Counter[str]()
    make = KINDS[kind]
    before = Leftovers.now()
    iterator = make(folder)
    expected = contents(iterator)
    began = time.perf_counter()
    first_epoch(iterator)
    seconds = 1.2 * (time.perf_counter() - began)
    for number in range(times):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        if number % 3 < 2:
            interrupts.during(partial(contents, iterator), seconds)
        else:
            interrupts.during(partial(leave_early, iterator, number % 7), seconds / 2)
        try:
            found = first_epoch(iterator)
        except KeyboardInterrupt:  # the last one, which came late, after a finalizer
            interrupts.seen += 1
            found = first_epoch(iterator)
        if found != expected:
            faults["another epoch"] += 1
    for _ in range(times // 50):  # while the iterator is made, and closed
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        made: list[Any] = []
        interrupts.during(lambda made=made: made.append(make(folder)), 0.02)
        while made:
            interrupts.during(lambda made=made: close(made[0]), 0.005)
            close(made.pop())
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    close(iterator)
    del iterator
    gc.collect()
    before.assert_the_same()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"sent": interrupts.sent, "seen": interrupts.seen, "faults": faults + interrupts.unraisable}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
