"""Settings taking turns with the default."""

from __future__ import annotations

import ctypes.util
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.measuring.layout import draw_environment
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.turns import DifferentWork, Pairs, take_blocks
from benchmarks.profile import Profile
from benchmarks.servers import start_server
from benchmarks.settings.setting import AXES, DEFAULT, Setting, why_not_here
from benchmarks.workload import Data, make_data

# One batch of photographs: short epochs, so that a turn of one side is a moment away from that of the other.
SAMPLES, IMAGE_SIZE = 32, 64
RESULT_TOLERANCE = 1e-2
TIMEOUT_SECONDS = 120.0
# What is rare takes so many times as long to be seen often enough.
RARE_FACTOR = 4
# Field of `Setting`, workload, value.
Key = tuple[str, str, str]
# Told which part of the work is done, from 0 to 1.
Progress = Callable[[float], None]


@dataclass
class Measured(Pairs):
    """Seconds of an epoch, of the default (A) and under the setting (B); and of each pair the bytes of either. Or what
    the installed commit lacks for it, or why it failed.
    """

    memory: list[tuple[int, int]] = field(default_factory=list)
    missing: str = ""
    failure: str = ""
    # Collections are rare and long: what counts is the time of all turns together, not that of the typical one.
    is_of_rare_events: bool = False

    @property
    def reason(self) -> str:
        """Why there is nothing to judge; empty where there is."""
        return self.missing or self.failure

    @property
    def log_ratios(self) -> list[float]:
        """For every pair log(B / A)."""
        if not self.is_of_rare_events:
            return super().log_ratios
        return [math.log(sum(b for _, b in pair) / sum(a for a, _ in pair)) for pair in self.blocks]


def keys(axes: Iterable[str]) -> list[Key]:
    """All that is measured on `axes`."""
    return [
        (axis, workload, value) for axis in axes for workload in AXES[axis].workloads for value in AXES[axis].values
    ]


def take_turns(
    axes: Iterable[str], rounds: int, seconds: float, progress: Progress = lambda _: None
) -> dict[Key, Measured]:
    """For each value of `axes` and each workload as many pairs of processes as there are `rounds`, which take turns for
    so many seconds. Every round imports both sides anew (`measuring/layout.py`). Raises `DifferentWork`, and
    `MeasurementError` if the default does.
    """
    measured = {
        key: Measured(
            missing=why_not_here(AXES[key[0]].at(key[0], key[2])), is_of_rare_events=AXES[key[0]].is_of_rare_events
        )
        for key in keys(axes)
    }
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Profile("settings", SAMPLES, IMAGE_SIZE, rounds, seconds, grid=False), Path(folder))
        sides = _Sides(data)

        def take(variant: tuple[str, str], number: int) -> None:
            nonlocal done
            values = [key for key, each in measured.items() if key[:2] == variant and not each.reason]
            if values:
                values = random.Random(number).sample(values, len(values))
                _at_workload(sides, measured, values, number, seconds)
                done += len(values)
                progress(done / len(measured) / rounds)

        variants = [(axis, workload) for (axis, workload, _), each in measured.items() if not each.reason]
        Rounds(variants, take, begin=sides.in_round, on_failure=_refuse).run(rounds)
    return measured


def _at_workload(
    sides: _Sides, measured: Mapping[Key, Measured], values: list[Key], number: int, seconds: float
) -> None:
    """The turns of all `values` of an axis on one workload, with one process of the default."""
    name, workload, _ = values[0]
    axis = AXES[name]
    request = {"workload": workload, "cpus": _cpus(number, axis.is_on_one_cpu)}
    seconds *= RARE_FACTOR if axis.is_of_rare_events else 1
    ready = sides.base.ask({**request, "setting": axis.base.to_json()})
    for key in values:
        setting = axis.at(name, key[2])
        try:
            side = sides.of(setting)
            other = side.ask({**request, "setting": setting.to_json()})
            _check_same_work(key, setting.dtype == axis.base.dtype, ready["result"], other["result"])
            blocks = take_blocks(partial(_turn, (sides.base, side), axis.turn_seconds), number, seconds, min_blocks=1)
            side.end_session()
        except MeasurementError as error:
            measured[key].failure = str(error)
            sides.end(setting)  # what failed may be in the middle of a session
            continue
        measured[key].blocks.append(blocks)
        measured[key].memory.append((ready["memory"], other["memory"]))
    sides.base.end_session()


def _refuse(_: tuple[str, str], error: MeasurementError) -> None:
    """Pass on an error of the default, without which there is nothing to compare with."""
    raise error


def _turn(sides: tuple[Server, Server], seconds: float, number: int) -> float:
    return float(sides[number].ask({"seconds": seconds})["seconds"])


def _check_same_work(key: Key, is_same_arithmetic: bool, expected: float, result: float) -> None:
    if is_same_arithmetic and not math.isclose(expected, result, rel_tol=RESULT_TOLERANCE):
        raise DifferentWork(f"not the same work: an epoch gave {result} under {', '.join(key)} and {expected} without")


class _Sides:
    """The process of the default, one for the settings, and one for each allocator, from its first use on."""

    base: Server

    def __init__(self, data: Data) -> None:
        self._data = data

    @contextmanager
    def in_round(self, number: int) -> Iterator[None]:
        """Start processes for the round, and end them after it."""
        with ExitStack() as self._stack:
            self._number = number
            self.base = self._start("the default", DEFAULT)
            self._sides = {DEFAULT: self._start("the setting", DEFAULT)}
            for side in (self.base, self._sides[DEFAULT]):
                side.wait_until_ready()
            yield

    def of(self, setting: Setting) -> Server:
        """The process that `setting` is tried in."""
        if setting.allocator not in self._sides:
            self._sides[setting.allocator] = self._start(f"the allocator {setting.allocator}", setting.allocator)
            self._sides[setting.allocator].wait_until_ready()
        return self._sides[setting.allocator]

    def end(self, setting: Setting) -> None:
        """End the process that `setting` was tried in; another one is started when it is needed."""
        side = self._sides.pop(setting.allocator, None)
        if side is not None:
            side.close()

    def _start(self, name: str, allocator: str) -> Server:
        # What libraries make of the machine where nothing is set; OpenBLAS's threads start when it is loaded, and what
        # has threads cannot be forked.
        environment = {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None, **draw_environment()}
        if allocator != DEFAULT:
            environment["LD_PRELOAD"] = str(ctypes.util.find_library(allocator))
        return self._stack.enter_context(
            start_server(
                name,
                "settings.serving:prepare",
                {"data": self._data.to_json(), "allocator": allocator},
                hash_seed=self._number,
                environment=environment,
                timeout=TIMEOUT_SECONDS,
            )
        )


def _cpus(number: int, is_on_one: bool) -> list[int]:
    """The CPU of a turn, another one in the next round; or all."""
    available = sorted(os.sched_getaffinity(0))
    return [available[number // 2 % len(available)]] if is_on_one else available


def memory_ratios(each: Measured) -> list[float]:
    """Of each pair, the bytes under the setting over those of the default."""
    return [other / base for base, other in each.memory]
