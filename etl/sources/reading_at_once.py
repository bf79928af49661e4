"""A check of a data set before several threads read it: do they get the records that one thread gets?"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from etl.sources.randomness import copied_arrays, first_difference, random_states_kept
from etl.sources.record import RecordSequence, source_name
from presave.thread_safety import unopened

MAX_RECORDS = 16
# All threads read all records once, and again for this long.
SECONDS = 0.2
# After this time, a record hangs: the epoch will name it.
MAX_SECONDS = 10.0
# Threads take turns so often that few reads are left alone.
SWITCH_SECONDS = 1e-5

Reading = dict[str, np.ndarray] | Exception


def check_threads(source: RecordSequence, threads: int) -> None:
    """Raise `ValueError` if a record is found that `threads` threads cannot read at once; see `find_collision`."""
    found = find_collision(source, threads)
    if found is not None:
        raise ValueError(
            f"{threads} threads cannot read {source_name(source)} at once: {found}. Leave out the number of threads, so "
            "that one reads; use processes; or open a file or connection in each thread, with threading.local"
        )


def find_collision(source: RecordSequence, threads: int) -> str | None:
    """Return a clause about a record that threads cannot read at once; None if none was found.

    Evenly spaced records are read one after the other, and then by all threads at once. Fields that differ from one
    reading to the next, as random transforms do, are not compared.

    Parameters
    ----------
    source : sequence of records
        The source.
    threads : int
        Number of threads.
    """
    records = unopened(source)
    indices = np.unique(np.linspace(0, len(source) - 1, MAX_RECORDS).astype(int)).tolist()
    found: list[str] = []
    is_over = threading.Event()

    def read(index: int) -> Reading:
        try:
            record = records[index]
            time.sleep(0)  # another thread may overwrite the record now
            return copied_arrays(record)
        except Exception as error:  # noqa: BLE001 - of the user's data set
            return error

    def read_all(expected: dict[int, dict[str, np.ndarray]], first: int, ends: float) -> None:
        order = [*expected][first:] + [*expected][:first]
        is_first = True
        while is_first or time.monotonic() < ends:
            is_first = False
            for index in order:
                if found or is_over.is_set():
                    return
                difference = _difference(expected[index], read(index))
                if difference:
                    found.append(f"record {index} {difference}")

    def check() -> None:
        pairs = {index: (read(index), read(index)) for index in indices}
        expected = {index: same for index, pair in pairs.items() if (same := _same_fields(*pair))}
        ends = time.monotonic() + SECONDS
        readers = [
            threading.Thread(target=read_all, args=(expected, number * len(expected) // threads, ends), daemon=True)
            for number in range(threads)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    interval = sys.getswitchinterval()
    with random_states_kept():
        # A thread of its own, because a record may hang.
        checking = threading.Thread(target=check, daemon=True)
        checking.start()
        try:
            sys.setswitchinterval(SWITCH_SECONDS)
            checking.join(MAX_SECONDS)
        finally:
            is_over.set()
            sys.setswitchinterval(interval)
    return found[0] if found else None


def _same_fields(one: Reading, other: Reading) -> dict[str, np.ndarray]:
    if isinstance(one, Exception) or isinstance(other, Exception):
        return {}
    return {
        name: value
        for name, value in one.items()
        if name in other and first_difference({name: value}, {name: other[name]}) is None
    }


def _difference(expected: dict[str, np.ndarray], reading: Reading) -> str:
    if isinstance(reading, Exception):
        return f"fails ({type(reading).__name__}: {reading})"
    field = first_difference(expected, {name: reading[name] for name in expected if name in reading})
    return "" if field is None else f"differs in {field!r}"
