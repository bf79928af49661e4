"""Runs as a program: for each line with a seed and the name of a neighbour, forks a process that starts one of our
iterators, and at a random moment of that start the neighbour, which starts processes too.

The process it is forked from has imported what takes long and has started nothing: no thread, no server process, no
kernel, no folder for temporary files. An answer is a line of JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil

import etl
from tests.torture.harness import serve

RECORDS = 24
LIMIT_SECONDS = 240
STACKS_SECONDS = 1.0
# Delays to the next moment, from none to a whole start.
LONGEST_SECONDS = (0.0, 0.002, 0.02, 0.2, 1.0)
LATE = "imported_late"

# Here, so that processes that import this do it as well.
faulthandler.register(signal.SIGUSR1, all_threads=True)


class Records:
    """Images that are their number; the process that loads imports a module for them when it loads the first."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        importlib.import_module(LATE)
        return {"features": np.full((8, 8, 3), index, np.uint8), "label": index}


class Numbers(Records):
    """The same for torch."""

    def __getitem__(self, index: int) -> Any:
        check_locks()
        return super().__getitem__(index)["features"]


def check_locks() -> None:
    """Need the locks that a start takes, or that others who fork ask for."""
    importlib.import_module(LATE)
    tempfile.gettempdir()
    multiprocessing.resource_tracker.ensure_running()
    logging.getLogger("beside").debug("here")
    sys.stdout.flush()


def check_child(seed: int) -> int:
    """Use iterators of ours in a child, too."""
    check_locks()
    with make(Random(seed).choice([THREADS, THREADS, KERNELS])) as iterator:
        check(iterator)
    return seed


def check(iterator: Any) -> None:
    assert sorted(label for batch in iterator for label in batch.labels.tolist()) == list(range(RECORDS))


THREADS: dict[str, Any] = {"threads": 2}
KERNELS: dict[str, Any] = {"threads": 2, "kernels": True}
FORKSERVER: dict[str, Any] = {"workers": "process", "processes": 2}
SPAWN: dict[str, Any] = {"workers": "process", "processes": 1, "start_method": "spawn"}


def make(options: dict[str, Any]) -> etl.AsyncIterator:
    options = dict(options)
    stages = (
        [etl.stages.ChannelsFirst(), etl.stages.Normalise((0.0,) * 3, (1.0,) * 3)]
        if options.pop("kernels", False)
        else []
    )
    return etl.AsyncIterator(etl.RawIterator(Records(), etl.Pipeline(stages), 4, shuffle=True), **options)


def data_loader(context: str) -> Callable[[int], None]:
    def run(seed: int) -> None:
        from torch.utils.data import DataLoader

        workers = 2 if context == "fork" else 1
        loader = DataLoader(Numbers(), 4, num_workers=workers, multiprocessing_context=context)
        assert sum(len(batch) for batch in loader) == RECORDS

    return run


def process_pool(seed: int) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(check_child, [seed, seed + 1])) == [seed, seed + 1]


def loky(seed: int) -> None:
    from joblib.externals.loky import ProcessPoolExecutor as LokyExecutor

    with LokyExecutor(2) as pool:
        assert list(pool.map(abs, [-seed])) == [seed]


def program(seed: int) -> None:
    # With something to do between fork and exec, for which the handlers of forks are run.
    prepare = check_locks if seed % 2 else None
    done = subprocess.run(["/bin/echo", "here"], capture_output=True, check=True, preexec_fn=prepare)
    assert done.stdout == b"here\n"


def bare_fork(seed: int) -> None:
    for number in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                check_child(seed + number)
                code = 0
            except BaseException:  # noqa: BLE001 - no further line of the program is run here
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


NEIGHBOURS: dict[str, Callable[[int], None]] = {
    "os.fork": bare_fork,
    "DataLoader, fork": data_loader("fork"),
    "DataLoader, spawn": data_loader("spawn"),
    "DataLoader, forkserver": data_loader("forkserver"),
    "ProcessPoolExecutor": process_pool,
    "joblib's loky": loky,
    "subprocess": program,
}


def start(seed: int, neighbour: str) -> None:
    """One start of ours with the neighbour's at a random moment of it, before it or after it."""
    chance = Random(f"{neighbour} {seed}")
    pause = lambda: time.sleep(chance.uniform(0, chance.choice(LONGEST_SECONDS)))  # noqa: E731
    options = chance.choice([FORKSERVER, FORKSERVER, SPAWN, THREADS, KERNELS, KERNELS])
    moment = chance.choice(["begun by a thread", "made", "begun", "first batch"])
    run = NEIGHBOURS[neighbour]
    beside = _Beside(lambda: run(seed))
    if moment == "begun by a thread":
        beside.start()
        pause()
    with make(options) as iterator:
        if moment == "made":
            pause()
            run(seed)
        batches = iter(iterator)
        if moment == "begun":
            pause()
            run(seed)
        first = next(batches)
        if moment == "first batch":
            pause()
            run(seed)
        check([first, *batches])
        if moment == "begun by a thread":
            beside.join()


class _Beside(threading.Thread):
    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - it is raised where this is joined
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._error is not None:
            raise self._error


def attempt(seed: int, neighbour: str, folder: Path) -> dict[str, str]:
    """What came of a start in a process of its own, with all it has printed."""
    said = folder / f"{neighbour} {seed}".replace("/", "-")
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ["TMPDIR"] = str(folder)
        with said.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for any fork beside a thread
        start(seed, neighbour)
        sys.exit()  # as any program ends, or with a traceback
    status = _wait(child)
    left = [each for each in _session(child) if each.pid != child]
    if status is None:
        # Each process of it says where its threads are, and those that cannot end.
        for each in _session(child):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(each.cmdline())[:80]
                with said.open("a") as file:
                    file.write(f"\n-- process {each.pid} of {each.ppid()}: {command}\n")
                each.send_signal(signal.SIGUSR1)
                time.sleep(STACKS_SECONDS / 4)
        time.sleep(STACKS_SECONDS)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    text = said.read_text(errors="replace")
    said.unlink()
    outcome = "hung" if status is None else "ended well" if status == 0 and not text else f"ended with status {status}"
    return {"outcome": outcome, "said": text}


def _wait(child: int) -> int | None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    return None


def _session(leader: int) -> Iterator[psutil.Process]:
    for each in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(each.pid) == leader and each.status() != psutil.STATUS_ZOMBIE:
                yield each


def main() -> None:
    """Serve the requests on stdin; files are made in the folder that is named on the command line."""
    # Imported before forking. The names of `etl` are not: it imports them on first use, which others fork beside.
    import torch.utils.data  # noqa: F401
    from joblib.externals import loky  # noqa: F401

    import presave  # noqa: F401

    assert len(list(Path("/proc/self/task").iterdir())) == 1, (
        "a fork would inherit locks of the threads of these imports"
    )
    serve(lambda request: attempt(*request, folder=Path(sys.argv[1])))


if __name__ == "__main__":
    main()
