"""Runs as a program: forks a child for each try, in which the file system fails or the process is killed."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import etl
import presave
from etl.commands import compare, main
from tests import comparison_reports
from tests.torture.failing_files import all_below
from tests.torture.harness import fork, serve

ACTIONS = {"count": 1, "kill": 2, "fail": 3, "full": 4}
COUNT = 60
SHARD_NBYTES = 40 * 10
LIMIT_SECONDS = 60
FAULTS = ctypes.CDLL(None)
SOURCE = Path(sys.argv[1]) / "source"


class Records:
    """Records of 40 bytes, with a stage and a source as those of pipelines have them."""

    stage, fingerprint, provenance = "resize", "0123", {"source": "photos/"}
    thread_safe = True

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(4, index), "y": index}


class ManyRecords(Records):
    """Enough of them for two of pickle's shards."""

    def __len__(self) -> int:
        return 300


def write(folder: Path, format: str, jobs: int = 1) -> None:
    """A store of six shards; pickle's has three."""
    records = ManyRecords() if format == "pickle" else Records()
    presave.write(folder / "s", records, format=format, shard_nbytes=SHARD_NBYTES, jobs=jobs).close()


def convert(folder: Path, format: str) -> None:
    """From a store that lies elsewhere."""
    presave.convert(SOURCE, folder / "s", format=format, shard_nbytes=SHARD_NBYTES, jobs=1).close()


def photographs(folder: Path) -> None:
    etl.demonstration.photographs(folder / "s", 10)


def digits(folder: Path, compress: bool = True) -> None:
    etl.demonstration.digits(folder / "s", 20, compress=compress)


def report(folder: Path, title: str) -> None:
    """The three files of `etl compare`, by the command itself, of measurements that were taken before."""
    made = replace(comparison_reports.photographs(), title=title)
    compare.run_comparison = lambda settings, show: made
    files = ["--json", f"{folder}/r.json", "--html", f"{folder}/r.html", "--trace", f"{folder}/r.trace"]
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        exit_code = main(["compare", str(folder), *files])
    if exit_code:
        raise SystemExit(said.getvalue())


TASKS: dict[str, Callable[..., None]] = {each.__name__: each for each in (write, convert, photographs, digits, report)}


def warm_up() -> None:
    """Import all that is imported late, and make the store that `convert` reads."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number, name in enumerate(presave.formats()):
            place = folder / f"store {number}"
            place.mkdir()
            write(place, name, 1 + number % 2)
        photographs(folder / "photographs")
        digits(folder / "digits")
        report(folder, "warm")


def attempt(request: dict[str, Any]) -> dict[str, Any]:
    """Run one task in a child; what came of it."""
    started = time.perf_counter()
    ended = fork(partial(_run, request), LIMIT_SECONDS, request.get("delay"))
    if ended.status is None:
        return {"outcome": "hung"}
    if ended.status < 0:
        return {"outcome": "killed", "signal": -ended.status}
    return {**ended.returned, "seconds": time.perf_counter() - started}


def attempt_on_small_disk(request: dict[str, Any]) -> dict[str, Any]:
    """`attempt` on a disk of its own, as small as the `disk` options of tmpfs say; with what is there then, the bytes
    that it takes, what came of going on when there is room, and what is there at last.
    """
    folder = Path(request["folder"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", request["disk"], "none", folder], check=True)
    try:
        empty = shutil.disk_usage(folder).free
        answer = attempt(request)
        answer |= {"left": _contents(folder), "taken": empty - shutil.disk_usage(folder).free}
        subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=10000", folder], check=True)
        answer |= {"again": attempt(request), "made": _contents(folder)}
    finally:
        subprocess.run(["umount", folder], check=True)
    return answer


def _contents(folder: Path) -> dict[str, str | None]:
    """All below `folder`, the bytes of files as hexadecimal digits."""
    return {name: None if content is None else content.hex() for name, content in all_below(folder).items()}


def _run(request: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any]
    if "largest" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest"], resource.RLIM_INFINITY))
    FAULTS.faults_arm(ACTIONS[request["action"]], ctypes.c_long(request.get("call", 0)), request.get("errno", 0))
    try:
        TASKS[request["task"]](Path(request["folder"]), **request.get("arguments", {}))
        answer = {"outcome": "done", "calls": FAULTS.faults_disarm()}
    except BaseException as error:  # noqa: BLE001 - which of them it is the test wants to know
        answer = {"outcome": "error", "calls": FAULTS.faults_disarm()}
        answer |= {"type": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
        # A write does not wait for other threads that are at work on a shard: they end it, and then look.
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.name.startswith("Thread-"):
                thread.join(LIMIT_SECONDS / 2)
    return answer


if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch and HDF5 speak there of what fails
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    presave.write(SOURCE, Records(), shard_nbytes=SHARD_NBYTES).close()
    warm_up()
    serve(lambda request: attempt_on_small_disk(request) if "disk" in request else attempt(request))
