"""Waits are divided into time in which loading used a CPU, or was ready to, and time in which data were waited for."""

from __future__ import annotations

import math
import multiprocessing
import operator
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from etl.measuring import waiting
from etl.measuring.clock import run_epoch
from etl.measuring.waiting import BusyThreads, WaitTimes, WaitWatch


@pytest.mark.parametrize(
    ("loop_busy", "loaders_busy", "loaders", "pressure", "storage"),
    [
        # A loop that loads itself waits for data while it is not busy; clocks differ a little.
        (7.0, 0.0, 0, None, 3.0),
        (10.1, 0.0, 0, None, 0.0),
        # One loader: while neither it nor the loop is busy.
        (1.0, 6.0, 1, None, 3.0),
        # Two that are always busy leave no time for storage, whatever the machine waits for.
        (0.0, 20.0, 2, 9.0, 0.0),
        # Two that sleep wait for data, although the kernel counts no I/O.
        (0.0, 1.0, 2, 0.0, 9.0),
        # Two that are busy for half of the time each: one holds the lock of the other, or both wait for the disk, and
        # pressure tells which; the rest of it is that of other processes.
        (0.0, 10.0, 2, 4.0, 4.0),
        (0.0, 10.0, 2, 8.0, 5.0),
        # They were idle in turns, without a local disk: for a network or a lock.
        (0.0, 10.0, 2, 0.0, None),
        # Without pressure: while none was busy.
        (0.0, 8.0, 2, None, 2.0),
    ],
)
def test_data_were_waited_for_while_loading_was_not_busy(
    loop_busy: float, loaders_busy: float, loaders: int, pressure: float | None, storage: float | None
) -> None:
    times = WaitTimes(10.0, loop_busy, loaders_busy, loaders, pressure)
    assert times.storage == storage
    assert times.method == ("cpu-time" if pressure is None else "psi")


class Clocks:
    """A /proc of one process with its loop and one loader, whose times are set by the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.loop_seconds = 0.0
        self.now = 0.0
        (folder / "thread-self").symlink_to("7/task/7")
        (folder / "pressure").mkdir()
        for name in ("7/task/7", "7/task/8", "7/task/9"):
            (folder / name).mkdir(parents=True)
            (folder / name / "children").write_text("")
            self.set(name, 0, 0)
        self.set("7/task/7", 0.001, 0)
        monkeypatch.setattr(waiting, "PROC", folder)
        monkeypatch.setattr(waiting.os, "getpid", lambda: 7)
        monkeypatch.setattr(waiting.time, "thread_time", lambda: self.loop_seconds)
        monkeypatch.setattr(waiting.time, "perf_counter", lambda: self.now)

    def set(self, name: str, used: float, queued: float) -> None:
        """Set the seconds of a thread."""
        (self.folder / name / "schedstat").write_text(f"{used * 1e9:.0f} {queued * 1e9:.0f} 1\n")


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path, monkeypatch)


def test_only_waits_after_the_first_count_and_only_threads_that_were_busy_in_it_load(clocks: Clocks) -> None:
    with WaitWatch() as watch:
        watch.begin()
        clocks.now = 5.0
        clocks.set("7/task/8", 3, 0)
        watch.end()
        clocks.set("7/task/8", 4, 0)  # while the loop computes
        watch.begin()
        clocks.now, clocks.loop_seconds = 15.0, 0.5
        clocks.set("7/task/7", 0, 1)  # ready, but without a CPU
        clocks.set("7/task/8", 6, 1)
        watch.end()
    assert watch.times() == WaitTimes(waited=10.0, loop_busy=1.5, loaders_busy=3.0, loaders=1, pressure=None)


def test_a_thread_that_computes_does_not_load_although_it_spins_while_the_loop_waits(clocks: Clocks) -> None:
    with WaitWatch() as watch:
        watch.begin()
        clocks.set("7/task/8", 3, 0)
        clocks.set("7/task/9", 1, 0)
        (clocks.folder / "pressure/io").write_text("some avg10=0.00 total=5\nfull avg10=0.00 total=3\n")
        watch.end()
        watch.begin()
        clocks.now = 10.0
        clocks.set("7/task/9", 8, 0)
        watch.end()
    found = watch.times(computing=["7/task/9"])
    assert found == WaitTimes(waited=10.0, loop_busy=0.0, loaders_busy=0.0, loaders=1, pressure=None)
    both = watch.times()
    assert both is not None
    assert (both.loaders, both.pressure) == (2, 0.0)


def test_pressure_is_counted_within_waits(clocks: Clocks) -> None:
    file = clocks.folder / "pressure/io"

    def press(microseconds: int) -> None:
        file.write_text(f"some avg10=0.00 total=99999999\nfull avg10=0.00 total={microseconds}\n")

    press(1_000_000)
    with WaitWatch() as watch:
        watch.begin()
        clocks.set("7/task/8", 3, 0)
        clocks.set("7/task/9", 3, 0)
        watch.end()
        for began, ended in ((2_000_000, 2_500_000), (4_000_000, 5_000_000)):
            press(began)
            watch.begin()
            clocks.now += 1
            press(ended)
            watch.end()
    found = watch.times()
    assert found is not None
    assert found.pressure == pytest.approx(1.5)


def test_nothing_is_known_if_threads_that_were_not_seen_in_the_first_wait_were_busy(clocks: Clocks) -> None:
    with WaitWatch() as watch:
        watch.begin()
        watch.end()
        watch.begin()
        clocks.now = 10.0
        clocks.set("7/task/8", 5, 0)
        watch.end()
    assert watch.times() is None
    assert watch.times(computing=["7/task/8"]) is not None


@pytest.mark.parametrize("missing", ["schedstat", "children"])
def test_nothing_is_known_of_a_kernel_that_does_not_tell(clocks: Clocks, missing: str) -> None:
    for name in ("7/task/7", "7/task/8", "7/task/9"):
        (clocks.folder / name / missing).unlink()
    with WaitWatch() as watch:
        watch.begin()
        watch.end()
        watch.begin()
        watch.end()
    assert watch.times() is None


def test_of_short_waits_only_so_many_are_watched_that_it_takes_little_time(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later() -> float:
        clocks.now += 1e-5  # whatever is done takes time
        return clocks.now

    monkeypatch.setattr(waiting.time, "perf_counter", later)
    with WaitWatch() as watch:
        started = clocks.now
        for _ in range(20_000):
            watch.begin()
            clocks.now += 1e-4
            watch.end()
        seconds = clocks.now - started
    found = watch.times()
    assert found is not None
    # 10 us of an epoch in which every wait takes 100 us: each look at the clock is a hundredth of it.
    assert 0.001 * seconds < found.waited < 0.2 * seconds


def test_a_kernel_that_leaves_the_times_at_zero_tells_nothing(clocks: Clocks) -> None:
    clocks.set("7/task/7", 0, 0)
    with WaitWatch() as watch:
        watch.begin()
        watch.end()
    assert watch.times() is None


def test_an_epoch_is_watched_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_UNSEEN_SHARE", math.inf)  # of an epoch of microseconds, beside pytest's threads
    with WaitWatch(max_cost_share=1.0) as watch:
        epoch = run_epoch([np.ones(4)] * 5, lambda _: None, watch)
    found = watch.times()
    assert found is not None
    # The first wait is left out, and the request that finds the end is included.
    assert found.waited > 0
    assert found.waited == pytest.approx(epoch.host_wait.rest + epoch.host_wait.end, abs=0.1)


def burn(done: threading.Event | None = None) -> None:
    """Use a CPU until `done` is set, or forever."""
    while done is None or not done.is_set():
        sum(range(1000))


@pytest.fixture
def burning_child() -> Iterator[int]:
    child = multiprocessing.get_context("fork").Process(target=burn, daemon=True)
    child.start()
    yield int(child.pid or 0)
    child.kill()
    child.join()


def test_busy_threads_are_those_of_this_process_and_of_its_children(burning_child: int) -> None:
    done = threading.Event()
    thread = threading.Thread(target=burn, args=(done,))
    idle = threading.Thread(target=done.wait)
    thread.start()
    idle.start()
    try:
        with BusyThreads() as busy:
            wanted = [seconds + 0.05 for seconds in cpu_seconds_of(thread, burning_child)]
            while any(map(operator.lt, cpu_seconds_of(thread, burning_child), wanted)):
                time.sleep(0.01)
    finally:
        done.set()
        thread.join()
        idle.join()
    found = {int(name.rpartition("/")[2]) for name in busy.names}
    assert {thread.native_id, burning_child} <= found
    assert idle.native_id not in found


def cpu_seconds_of(thread: threading.Thread, pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a thread of this process, and of another process."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)), psutil.Process(pid).cpu_times().user
