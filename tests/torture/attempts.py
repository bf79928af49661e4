"""Attempts at breaking something, made in a process of their own: what it died of, and which attempt that was.

It is forked from a process that has done nothing, since one of a test run, which has threads, may hang in any lock.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from tests.torture.harness import die_of_time, limit_memory, limit_time
from tests.worker_processes import descriptors

MORE_NBYTES = 2 << 30
MAX_FAULTS = 20
MAX_OPENED = 2
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["h5py", "torch", "etl", "presave"])


@dataclass(frozen=True)
class Attempts:
    """`run` returns what came of the attempt of a number, or raises, which is a fault; `show` is its input."""

    run: Callable[[int], str]
    show: Callable[[int], str]


@dataclass
class Outcomes:
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def attempt_all(make: Callable[[Path], Attempts], count: int, folder: Path) -> Outcomes:
    """Run `count` attempts in a process that is begun anew where it dies; each makes them in a folder of its own."""
    log, errors = folder / "attempts.log", folder / "attempts.stderr"
    log.touch()
    for process in range(MAX_FAULTS):
        started = folder / f"process-{process}"
        started.mkdir()
        child = PROCESSES.Process(target=_serve, args=(make, count, started, log, errors))
        child.start()
        child.join()
        ended = child.exitcode
        assert ended is not None
        said = errors.read_text(errors="replace")[-3000:]
        if ended > 0:
            raise RuntimeError(f"the attempts ended: {said}")
        if ended == 0:
            break
        number = len(_read(log))
        shown = folder / f"shown-{process}"
        shown.mkdir()
        shown_input = make(shown).show(number)
        _write(log, "died", f"attempt {number}: died of {signal.Signals(-ended).name}\n{said}\n{shown_input}")
    entries = _read(log)
    return Outcomes(Counter(outcome for outcome, _ in entries), [fault for _, fault in entries if fault])


def check_names(error: Exception, name: object) -> None:
    """An error that does not say where is a fault."""
    if str(name) not in str(error):
        raise AssertionError(f"does not name {name}: {error!r}") from error


def _serve(make: Callable[[Path], Attempts], count: int, folder: Path, log: Path, errors: Path) -> NoReturn:
    status = 1
    try:
        with errors.open("wb") as file:
            os.dup2(file.fileno(), 2)
        faulthandler.enable(2)
        warnings.simplefilter("ignore")
        die_of_time()
        _attempt_rest(limit_time(lambda: make(folder)), count, log)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, no further line of the tests is run here
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def _attempt_rest(attempts: Attempts, count: int, log: Path) -> None:
    limit_memory(MORE_NBYTES)
    opened = descriptors()
    faults = 0
    for number in range(len(_read(log)), count):
        try:
            _write(log, limit_time(partial(attempts.run, number)))
        except Exception:  # noqa: BLE001 - any is a fault, and shown
            faults += 1
            text = f"attempt {number}: {traceback.format_exc(limit=-6)}\n{attempts.show(number)}"
            _write(log, "fault", text if faults <= MAX_FAULTS else "further faults")
    limit_time(gc.collect)
    if descriptors() > opened + MAX_OPENED:
        raise AssertionError(f"files are left open: {opened} before, {descriptors()} after")


def _read(log: Path) -> list[list[str]]:
    """Outcome and fault of each attempt that has ended."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def _write(log: Path, outcome: str, fault: str = "") -> None:
    with log.open("a") as file:
        file.write(json.dumps([outcome, fault]) + "\n")
