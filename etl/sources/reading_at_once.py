"""A check of a data set before several threads read it: do they get the records that one thread gets?"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from etl.sources.randomness import copied_arrays, evenly_spaced, first_difference, random_states_kept
from etl.sources.record import RecordSequence, source_name
from presave import forks
from presave.thread_safety import unopened

# How long all threads read at once, and one alone if a record differed then, unless a record takes longer.
SECONDS = 1.0
# After this time, a record hangs: the epoch will name it.
MAX_SECONDS = 10.0
# A thread pauses about so often in a read, between calls of functions, where Python may let another thread continue.
PAUSES, PAUSE_SECONDS = 10, 1e-5

Reading = dict[str, np.ndarray] | Exception


def check_threads(source: RecordSequence, threads: int) -> None:
    """Raise `ValueError` if a record is found that `threads` threads cannot read at once.

    Evenly spaced records are read one after the other, and then by all threads at once. A field is not compared if one
    thread, too, finds it different from one reading to the next, as after a random transform.
    """
    check = _Check(source, threads)
    # A thread of its own, because a record may hang.
    checking = threading.Thread(target=check.run, daemon=True)
    with random_states_kept():
        checking.start()
        try:
            checking.join(MAX_SECONDS)
        finally:
            check.is_over = True
    if check.failure is not None:
        raise check.failure
    if check.found is not None:
        raise ValueError(
            f"{threads} threads cannot read {source_name(source)} at once: {check.found}. Leave out the number of "
            "threads, so that one reads; use processes; or open a file or connection in each thread, with "
            "threading.local"
        )


class _Check:
    """Attributes: `found`, what differed; `failure`, why it could not be checked; `is_over`, True to end it."""

    def __init__(self, source: RecordSequence, threads: int) -> None:
        self.found: str | None = None
        self.failure: BaseException | None = None
        self.is_over = False
        self._records = unopened(source)
        self._indices = evenly_spaced(source)
        self._threads = threads
        self._expected: dict[int, dict[str, np.ndarray]] = {}
        self._random_fields: set[str] = set()
        self._suspect: tuple[int, str] | None = None
        self._calls = 0

    def run(self) -> None:
        """Read one after the other, then at once, until no field is suspected in vain."""
        for index in self._indices:
            if self.is_over:
                return
            reading = self._read(index)
            if not isinstance(reading, Exception):
                self._expected[index] = reading
                self._find_random_fields(index, self._count_call)
        while not self.is_over:
            self._suspect = None
            self._read_at_once()
            if self.is_over or self.found is not None or self._suspect is None:  # type: ignore[redundant-expr]  # set above
                return
            index, field = self._suspect  # type: ignore[unreachable]
            ends = time.monotonic() + SECONDS
            while field not in self._random_fields and not self.is_over:
                if time.monotonic() > ends:
                    self.found = f"record {index} differs in {field!r}"
                    return
                self._find_random_fields(index)

    def _find_random_fields(self, index: int, at_call: Callable[..., None] | None = None) -> None:
        """Read a record with no other thread beside it, and note fields that differ."""
        expected, again = self._expected[index], self._read(index, at_call)
        if not isinstance(again, Exception):
            for name in expected.keys() & again.keys():
                if first_difference({name: expected[name]}, {name: again[name]}) is not None:
                    self._random_fields.add(name)

    def _read_at_once(self) -> None:
        readers = [threading.Thread(target=self._read_all, args=(each,), daemon=True) for each in range(self._threads)]
        started = []
        try:
            for reader in readers:
                reader.start()
                started.append(reader)
        except RuntimeError as error:
            self.failure, self.is_over = error, True
        for reader in started:
            reader.join()

    def _read_all(self, number: int) -> None:
        """Read all records again and again, and compare them; threads begin at different records."""
        indices = list(self._expected)
        first = number * len(indices) // self._threads
        draw = random.Random(number).random
        share = PAUSES * len(self._indices) / max(1, self._calls)

        def pause(*_: object) -> None:
            if draw() < share:
                time.sleep(PAUSE_SECONDS)

        ends = time.monotonic() + SECONDS
        while indices and time.monotonic() < ends:
            for index in indices[first:] + indices[:first]:
                self._compare(index, self._read(index, pause))
                if self.found or self._suspect or self.is_over or time.monotonic() > ends:
                    return

    def _compare(self, index: int, reading: Reading) -> None:
        if isinstance(reading, Exception):
            self.found = f"record {index} fails ({type(reading).__name__}: {reading})"
            return
        expected, found = (
            {name: value for name, value in each.items() if name not in self._random_fields}
            for each in (self._expected[index], reading)
        )
        if field := first_difference(expected, found):
            self._suspect = index, field

    def _read(self, index: int, at_call: Callable[..., None] | None = None) -> Reading:
        """Return copies of the arrays of a record, or its error; `at_call` is called before and after each call."""
        with forks.held_off():  # the first reading may import what a child of a fork needs, too
            sys.setprofile(at_call)
            try:
                record = self._records[index]
                time.sleep(0)  # another thread may overwrite the record now
                return copied_arrays(record)
            except Exception as error:  # noqa: BLE001 - of the user's data set
                return error
            finally:
                sys.setprofile(None)

    def _count_call(self, *_: object) -> None:
        self._calls += 1
