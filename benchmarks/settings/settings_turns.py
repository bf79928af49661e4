"""Settings take turns with the default."""

from __future__ import annotations

import ctypes.util
import math
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import Profile
from benchmarks.console import Progress
from benchmarks.journal import Kind, by_variant, open_rounds
from benchmarks.measuring.layout import draw_environment
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.same_work import DoneWork, check_same_work
from benchmarks.measuring.turns import Block, Pairs, take_blocks
from benchmarks.measuring.values import JsonValues
from benchmarks.servers import start_server
from benchmarks.settings.setting import AXES, DEFAULT, Setting, unsupported_reason
from benchmarks.workload import Data, make_data

# One batch of photographs: epochs are short, so that a turn of one arm is a moment away from that of the other.
SAMPLES, IMAGE_SIZE = 32, 64
TIMEOUT_SECONDS = 120.0
# Workloads of rare events are measured this many times as long, so that enough events occur.
RARE_FACTOR = 4
# Field of `Setting`, workload, value.
Key = tuple[str, str, str]


@dataclass
class SettingPairs(Pairs):
    """Pairs of the default (A) and a setting (B), or the reason why there are none.

    Attributes
    ----------
    memory : list of (int, int)
        Bytes of A and of B, for each pair.
    missing : str
        What the installed commit lacks for the setting.
    failure : str
        Why measuring failed.
    is_of_rare_events : bool
        Whether the total time of all turns is compared, instead of that of the typical turn: collections are rare and
        long.
    """

    memory: list[tuple[int, int]] = field(default_factory=list)
    missing: str = ""
    failure: str = ""
    is_of_rare_events: bool = False

    @property
    def reason(self) -> str:
        """Reason why there is no verdict; empty if there is a verdict."""
        return self.missing or self.failure

    @property
    def log_ratios(self) -> list[float]:
        """log(B / A) of every pair."""
        if not self.is_of_rare_events:
            return super().log_ratios
        return [math.log(sum(b for _, b in pair) / sum(a for a, _ in pair)) for pair in self.blocks]


@dataclass(frozen=True)
class SettingResult(JsonValues):
    """A setting in one pair of processes.

    Attributes
    ----------
    value : str
        The value of the axis.
    blocks : list of (float, float)
        Blocks of turns.
    memory : list of int
        Bytes of A and of B.
    failure : str
        Why measuring failed; empty if it did not.
    """

    value: str
    blocks: list[Block]
    memory: list[int]
    failure: str = ""


@dataclass(frozen=True)
class RoundOfSettings(JsonValues):
    """All values of an axis on a workload in one round."""

    results: list[SettingResult]


# Keys are an axis with a workload, and a round.
JOURNAL: Kind[tuple[tuple[str, str], int], RoundOfSettings] = Kind(
    "settings", tuple[tuple[str, str], int], RoundOfSettings
)


def keys(axes: Iterable[str]) -> list[Key]:
    """Return the keys of all that is measured on `axes`."""
    return [
        (axis, workload, value) for axis in axes for workload in AXES[axis].workloads for value in AXES[axis].values
    ]


def take_turns(
    axes: Iterable[str], rounds: int, seconds: float, progress: Progress = lambda _: None
) -> dict[Key, SettingPairs]:
    """Measure settings in turns with the default. Every round imports both arms anew (`measuring/layout.py`).

    Parameters
    ----------
    axes : iterable of str
        Keys of `AXES`, all of whose values are measured on all of their workloads.
    progress : Progress
        Called after each value.

    Raises
    ------
    DifferentWork
        If an epoch gave another result under a setting.
    MeasurementError
        If the default cannot be measured. If a setting fails, its result has the reason.
    """
    measured = {
        key: SettingPairs(
            missing=unsupported_reason(AXES[key[0]].at(key[0], key[2])),
            is_of_rare_events=AXES[key[0]].is_of_rare_events,
        )
        for key in keys(axes)
    }
    variants = list(dict.fromkeys(key[:2] for key, each in measured.items() if not each.reason))
    profile = Profile("settings", SAMPLES, IMAGE_SIZE, rounds, seconds, grid=False)
    with open_rounds(JOURNAL, variants, profile, list(measured)) as journal, tempfile.TemporaryDirectory() as folder:
        arms = _Arms(make_data(profile, Path(folder)))
        done = 0

        def add(variant: tuple[str, str], sample: RoundOfSettings) -> None:
            nonlocal done
            for each in sample.results:
                _add(measured[(*variant, each.value)], each)
            done += len(sample.results)
            progress(done / len(measured) / rounds)

        def take(variant: tuple[str, str], number: int) -> RoundOfSettings:
            values = [key for key, each in measured.items() if key[:2] == variant and not each.reason]
            values = random.Random(number).sample(values, len(values))
            sample = RoundOfSettings(_at_workload(arms, values, number, seconds) if values else [])
            journal.note((variant, number), sample)
            add(variant, sample)
            return sample

        for (variant, _), sample in journal.results.items():
            add(variant, sample)
        taken = by_variant(journal.results)
        Rounds(variants, take, taken=taken, begin=arms.in_round, on_failure=_refuse).run(rounds)
    return measured


def _add(pairs: SettingPairs, result: SettingResult) -> None:
    """Add a result to those of the same setting."""
    if result.failure:
        pairs.failure = result.failure
        return
    pairs.blocks.append(result.blocks)
    a, b = result.memory
    pairs.memory.append((a, b))


def _at_workload(arms: _Arms, values: list[Key], number: int, seconds: float) -> list[SettingResult]:
    """Take the turns of all `values` of an axis on one workload, with one process of the default."""
    name, workload, _ = values[0]
    axis = AXES[name]
    request = {"workload": workload, "cpus": _cpus(number, axis.is_on_one_cpu)}
    seconds *= RARE_FACTOR if axis.is_of_rare_events else 1
    ready = arms.base.ask({**request, "setting": axis.base.to_json()})
    results = []
    for key in values:
        setting = axis.at(name, key[2])
        try:
            arm = arms.of(setting)
            other = arm.ask({**request, "setting": setting.to_json()})
            done, expected = (done_work(setting, axis.base, each) for each in (other, ready))
            check_same_work(f"{workload} with {name} {key[2]}", done, "the default", expected)
            blocks = take_blocks(partial(_turn, (arms.base, arm), axis.turn_seconds), number, seconds, min_blocks=1)
            arm.end_session()
        except MeasurementError as error:
            results.append(SettingResult(key[2], [], [], str(error)))
            arms.end(setting)  # its server may be in the middle of a session
            continue
        results.append(SettingResult(key[2], blocks, [ready["memory"], other["memory"]]))
    arms.base.end_session()
    return results


def done_work(setting: Setting, base: Setting, answer: Mapping[str, Any]) -> DoneWork:
    """Return the work of an epoch; in another dtype the arithmetic differs, so the score is left out."""
    return DoneWork(score=answer["result"] if setting.dtype == base.dtype else None)


def _refuse(_: tuple[str, str], error: MeasurementError) -> None:
    """Raise an error of the default: without it there is nothing to compare with."""
    raise error


def _turn(arms: tuple[Server, Server], seconds: float, arm: int) -> float:
    return float(arms[arm].ask({"seconds": seconds})["seconds"])


class _Arms:
    """The servers of a round: one for the default, one for the settings, and one for each allocator once it is used."""

    base: Server

    def __init__(self, data: Data) -> None:
        self._data = data

    @contextmanager
    def in_round(self, number: int) -> Iterator[None]:
        """Start the servers for the round, and end them after it."""
        with ExitStack() as self._stack:
            self._number = number
            self.base = self._start("the default", DEFAULT)
            self._arms = {DEFAULT: self._start("the setting", DEFAULT)}
            for arm in (self.base, self._arms[DEFAULT]):
                arm.wait_until_ready()
            yield

    def of(self, setting: Setting) -> Server:
        """Return the server that `setting` is tried in."""
        if setting.allocator not in self._arms:
            self._arms[setting.allocator] = self._start(f"the allocator {setting.allocator}", setting.allocator)
            self._arms[setting.allocator].wait_until_ready()
        return self._arms[setting.allocator]

    def end(self, setting: Setting) -> None:
        """End the server that `setting` was tried in; another one is started when it is needed."""
        arm = self._arms.pop(setting.allocator, None)
        if arm is not None:
            arm.close()

    def _start(self, name: str, allocator: str) -> Server:
        # OpenMP and MKL choose their threads. OpenBLAS stays at one: its threads start when it is loaded, and a process
        # with threads cannot be forked.
        environment = {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None, **draw_environment()}
        if allocator != DEFAULT:
            environment["LD_PRELOAD"] = str(ctypes.util.find_library(allocator))
        return self._stack.enter_context(
            start_server(
                name,
                "settings.settings_worker:prepare",
                {"data": self._data.to_json(), "allocator": allocator},
                hash_seed=self._number,
                environment=environment,
                timeout=TIMEOUT_SECONDS,
            )
        )


def _cpus(number: int, is_on_one: bool) -> list[int]:
    """Return the CPU of a turn, which changes every two rounds, or all CPUs."""
    available = sorted(os.sched_getaffinity(0))
    return [available[number // 2 % len(available)]] if is_on_one else available


def memory_ratios(each: SettingPairs) -> list[float]:
    """Return the bytes under the setting over those of the default, for each pair."""
    return [other / base for base, other in each.memory]
