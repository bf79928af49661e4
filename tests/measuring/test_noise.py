"""Noise: CPU time is attributed to this process, other processes or the hypervisor; disturbed samples do not count."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from etl.measuring import noise
from etl.measuring.noise import (
    MAX_OTHER_PROCESSES,
    MAX_SLOWDOWN,
    MAX_STEAL,
    MAX_UNEXPLAINED,
    NoiseGate,
    NoiseWatch,
    ProbeSeconds,
    ThrottleWatch,
    cpu_times,
    describe_disturbance,
    frequencies,
    probe_speed,
    quickest,
)
from etl.measuring.process_tree import children, cpu_seconds

BURNT = 0.2
# Uses `BURNT` seconds of CPU time, says so, and waits.
BURN = f"""
import sys, time
while time.process_time() < {BURNT}:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""
TICK = 1 / os.sysconf("SC_CLK_TCK")
# The clocks of the system and of a process count in ticks: each may be one short at either end.
TICKS = 4 * TICK


def write_stat(path: Path, busy: float, idle: float, steal: float, lists_cpus: bool = True) -> Path:
    """Write a file such as /proc/stat from seconds of the CPUs of this process. If it lists them, others are idle."""
    first, *rest = (f"cpu{each}" for each in sorted(os.sched_getaffinity(0)))
    times = {"cpu ": (busy, idle, steal)}
    if lists_cpus:
        times = {"cpu ": (busy, 10 * idle, steal), first: (busy, idle, steal), **dict.fromkeys(rest, (0.0, 0.0, 0.0))}
    tick = os.sysconf("SC_CLK_TCK")
    path.write_text(
        "".join(
            f"{name} {used * tick:.0f} 0 0 {unused * tick:.0f} 0 0 0 {stolen * tick:.0f} 0 0\n"
            for name, (used, unused, stolen) in times.items()
        )
    )
    return path


def test_a_child_and_its_children_count_as_this_process_while_they_run_and_when_they_have_ended() -> None:
    before = cpu_seconds()
    # The first child of the shell ends before it is looked at, the second one afterwards.
    script = '"$0" -c "$1" < /dev/null; "$0" -c "$1"'
    with subprocess.Popen(
        ["sh", "-c", script, sys.executable, BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == [b"burnt\n"] * 2
        assert cpu_seconds() - before >= 2 * BURNT - TICKS
    assert cpu_seconds() - before >= 2 * BURNT - TICKS


def test_time_of_a_busy_child_is_not_that_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # According to the system, all processes together were busy for one second of four.
    monkeypatch.setattr(noise, "STAT", write_stat(tmp_path / "stat", busy=100, idle=100, steal=0))
    with NoiseWatch() as watch:
        subprocess.run([sys.executable, "-c", BURN], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        write_stat(tmp_path / "stat", busy=101, idle=103, steal=0)
    assert watch.other_processes <= (1 - BURNT + TICKS) / 4
    assert watch.own_seconds >= BURNT


def test_own_time_is_counted_finer_than_in_ticks() -> None:
    spent = 0.003
    with NoiseWatch() as watch:
        until = time.process_time() + spent
        while time.process_time() < until:
            pass
    assert watch.own_seconds >= spent * 0.9


@pytest.fixture
def one_cpu() -> Iterator[set[int]]:
    """Bind this thread, and the processes that it starts, to one CPU: the times of each CPU are rounded to ticks."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield {min(before)}
    os.sched_setaffinity(0, before)


def test_an_unrelated_process_that_is_busy_counts_as_others(one_cpu: set[int]) -> None:
    # Its parent ends at once, so that it is no descendant of this process.
    script = '"$0" -c "$1" < "$2" & echo $!'
    before = cpu_times(one_cpu)
    with NoiseWatch() as watch:
        reader, writer = os.pipe()
        fifo = f"/dev/fd/{reader}"
        with subprocess.Popen(
            ["sh", "-c", script, sys.executable, BURN, fifo], stdout=subprocess.PIPE, pass_fds=[reader]
        ) as shell:
            assert shell.stdout is not None
            pid = int(shell.stdout.readline())
            assert shell.stdout.readline() == b"burnt\n"
        os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.close(writer)
    unsure = (4 + 2 * len(children())) * TICK
    total = cpu_times(one_cpu).total - before.total
    assert watch.other_processes * total >= BURNT - TICKS - unsure


@pytest.mark.parametrize("lists_cpus", [True, False])
def test_shares_are_those_of_the_cpus_of_this_process(
    lists_cpus: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "STAT", write_stat(tmp_path / "stat", 100, 100, 10, lists_cpus))
    with NoiseWatch() as watch:
        write_stat(tmp_path / "stat", 107, 110, 13, lists_cpus)
    assert watch.steal == pytest.approx(0.15, abs=0.01)
    assert watch.other_processes == pytest.approx(0.35, abs=0.01)


@pytest.mark.parametrize("workers", [0, 2])
def test_ticks_in_a_short_block_are_no_noise(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "STAT", write_stat(tmp_path / "stat", busy=100, idle=100, steal=1))
    with contextlib.ExitStack() as running:
        for _ in range(workers):
            running.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        with NoiseWatch() as watch:
            write_stat(tmp_path / "stat", busy=100 + (4 + 2 * workers) * TICK, idle=100.2, steal=1 + TICK)
    assert (watch.steal, watch.other_processes) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_a_block_of_no_duration_has_no_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "STAT", write_stat(tmp_path / "stat", busy=1, idle=1, steal=1))
    with NoiseWatch() as watch:
        pass
    assert (watch.steal, watch.other_processes) == (0.0, 0.0)


def test_the_probe_gives_its_memory_back() -> None:
    before = psutil.Process().memory_full_info().uss
    probes = probe_speed()
    assert psutil.Process().memory_full_info().uss - before < noise.COPIED_NBYTES / 2
    assert min(probes.cpu, probes.memory) > 0


REFERENCE = ProbeSeconds(cpu=0.5e-3, memory=8e-3)


@dataclass
class Taken:
    """A sample that is as noisy as it may be."""

    probes: list[ProbeSeconds]
    steal: float = MAX_STEAL
    other_processes: float = MAX_OTHER_PROCESSES
    unexplained: float = -MAX_UNEXPLAINED


def taken(**noises: float) -> Taken:
    return Taken([REFERENCE] * 2, **noises)


@pytest.mark.parametrize(
    ("noises", "reason"),
    [
        ({}, ""),
        ({"other_processes": 0.12}, "other processes used 12% of the CPUs"),
        ({"steal": 0.04}, "the hypervisor took 4% of the CPUs"),
    ],
)
def test_a_sample_during_which_others_took_cpus_is_disturbed(noises: dict[str, float], reason: str) -> None:
    assert describe_disturbance(taken(**noises), REFERENCE) == reason


@pytest.mark.parametrize(
    ("cpu", "memory", "reason"),
    [
        (MAX_SLOWDOWN.cpu, MAX_SLOWDOWN.memory, ""),
        (1.4, 1.0, "the CPU was 1.40 times slower than at its quickest"),
        (1.0, 1.9, "memory was 1.90 times slower than at its quickest"),
    ],
)
@pytest.mark.parametrize("is_after", [False, True])
def test_a_sample_before_or_after_which_a_probe_was_slow_is_disturbed(
    cpu: float, memory: float, reason: str, is_after: bool
) -> None:
    slow = ProbeSeconds(cpu * REFERENCE.cpu, memory * REFERENCE.memory)
    assert describe_disturbance(Taken([REFERENCE, slow] if is_after else [slow, REFERENCE]), REFERENCE) == reason


def test_the_quickest_probes_are_so_of_each_kind() -> None:
    assert quickest([ProbeSeconds(1, 5), ProbeSeconds(2, 4), ProbeSeconds(3, 6)]) == ProbeSeconds(1, 4)


def pass_through(gate: NoiseGate, samples: Sequence[Taken], count: int) -> Taken:
    """Return which of `samples` counts, of which there are to be `count` in all."""
    left = iter(samples)
    return gate.take("raw in round 1", count, lambda: next(left))


DISTURBED, BROKEN = taken(steal=0.5), taken(unexplained=-0.02)


def test_a_sample_that_is_disturbed_or_does_not_add_up_is_taken_again() -> None:
    gate, good = NoiseGate(), taken()
    assert pass_through(gate, [DISTURBED, BROKEN, good], 5) is good
    assert gate.retaken == [
        "raw in round 1: the hypervisor took 50% of the CPUs",
        "raw in round 1: -2.00% of its wall time is unexplained",
    ]
    assert gate.disturbed == []


def test_a_probe_is_slow_beside_the_quickest_of_all_samples() -> None:
    gate, good = NoiseGate(), taken()
    slow = Taken([ProbeSeconds(2 * REFERENCE.cpu, REFERENCE.memory)] * 2)
    assert pass_through(gate, [good], 5) is good
    assert pass_through(gate, [slow, good], 5) is good


@pytest.mark.parametrize(("count", "allowed"), [(0, 0), (4, 0), (5, 1), (9, 1), (40, 8)])
@pytest.mark.parametrize(("bad", "other"), [(DISTURBED, BROKEN), (BROKEN, DISTURBED)], ids=["disturbed", "broken"])
def test_a_fifth_of_the_samples_is_taken_again_for_either_reason(
    bad: Taken, other: Taken, count: int, allowed: int
) -> None:
    gate = NoiseGate()
    assert pass_through(gate, [bad] * 50, count) is bad
    assert (len(gate.retaken), len(gate.disturbed)) == (allowed, 1)
    pass_through(gate, [other] * 50, count)
    assert (len(gate.retaken), len(gate.disturbed)) == (2 * allowed, 2)


def test_the_frequencies_are_those_that_the_system_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(frequencies()) in (0, os.cpu_count())
    monkeypatch.setattr(noise, "CPU_INFO", tmp_path / "cpuinfo")
    assert frequencies() == []
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2449.998\nflags : fpu\ncpu MHz\t\t: 2450.0\n")
    assert frequencies() == [2449.998, 2450.0]


@pytest.mark.parametrize(
    ("own", "throttled_in", "share"),
    [
        ("1:cpu,cpuacct:/a/b\n0::/\n", "cpu/a/b", 0.5),
        ("1:cpu,cpuacct:/a/b\n0::/\n", "cpu/a", 0.5),
        ("1:cpu,cpuacct:/a/b\n0::/\n", "cpu", 0.5),
        ("0::/a/b\n", "a/b", 0.5),
        ("0::/a/b\n", "a", 0.5),
        ("0::/\n", ".", 0.5),
        ("0::/../elsewhere\n", ".", 0.5),
        ("0::/a/b\n", "a/other", 0.0),
    ],
)
def test_periods_in_which_a_quota_around_this_process_was_used_up_are_counted(
    own: str, throttled_in: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(noise, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(noise, "CGROUPS", tmp_path / "groups")
    stat = tmp_path / "groups" / throttled_in / "cpu.stat"
    stat.parent.mkdir(parents=True)
    stat.write_text("usage_usec 7\nnr_periods 100\nnr_throttled 90\nthrottled_usec 1\n")
    with NoiseWatch() as watch:
        stat.write_text("usage_usec 8\nnr_periods 120\nnr_throttled 100\nthrottled_usec 2\n")
    assert watch.throttled == share


def test_without_a_quota_or_a_period_nothing_was_throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "CGROUPS", tmp_path)
    for text in ("usage_usec 7\n", "nr_periods 0\nnr_throttled 0\n", "nr_periods 9\nnr_throttled 9\n", "damaged"):
        (tmp_path / "cpu.stat").write_text(text)
        with ThrottleWatch() as watch:
            pass
        assert watch.throttled == 0.0
