"""Settings take turns with the default."""

from __future__ import annotations

import ctypes.util
import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.cells import Profile
from benchmarks.console import Progress
from benchmarks.journal import Kind, by_variant, open_rounds
from benchmarks.measuring.layout import draw_environment
from benchmarks.measuring.processes import Server
from benchmarks.measuring.turn_rounds import (
    Arm,
    Contest,
    ContestTurns,
    Pairs,
    PairTurns,
    TurnRounds,
    Turns,
    cpus_of_round,
)
from benchmarks.servers import start_server
from benchmarks.settings.setting import AXES, DEFAULT, Setting, unsupported_reason
from benchmarks.workload import Data, make_data

# One batch of photographs: epochs are short, so that a turn of one arm is a moment away from that of the other.
SAMPLES, IMAGE_SIZE = 32, 64
TIMEOUT_SECONDS = 120.0
# Workloads of rare events are measured this many times as long, so that enough events occur.
RARE_FACTOR = 4
# Servers, as their names and allocators: that of the default, and that of all settings but allocators.
BASE, SETTING = ("the default", DEFAULT), ("the setting", DEFAULT)
# The only metric.
TIME = "epoch"
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


# Keys are an axis with a workload, and a round.
JOURNAL: Kind[tuple[tuple[str, str], int], ContestTurns] = Kind("settings", tuple[tuple[str, str], int], ContestTurns)


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
        Called after each workload.

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
    values: dict[tuple[str, str], list[str]] = {}
    for (axis, workload, value), each in measured.items():
        if not each.reason:
            values.setdefault((axis, workload), []).append(value)
    profile = Profile("settings", SAMPLES, IMAGE_SIZE, rounds, seconds, grid=False)
    with tempfile.TemporaryDirectory() as folder, open_rounds(JOURNAL, [*values], profile, [*measured]) as journal:
        data = make_data(profile, Path(folder))

        def note(key: tuple[tuple[str, str], int], result: ContestTurns) -> None:
            journal.note(key, result)
            progress(len(journal.results) / len(values) / rounds)

        TurnRounds(
            values,
            lambda key, number: contest(*key, values[key], seconds, number),
            partial(start_server_of, data),
            [BASE, SETTING],
            taken=by_variant(journal.results),
            note=note,
        ).run(rounds)
        for (key, _), result in journal.results.items():
            for pair in result.pairs:
                _add(measured[(*key, pair.rival)], pair)
    return measured


def contest(name: str, workload: str, values: Iterable[str], seconds: float, number: int) -> Contest:
    """Return the contest of some values of an axis with the default.

    Parameters
    ----------
    name, workload : str
        The axis, and one of its workloads.
    seconds : float
        Time of turns for each pair.
    number : int
        Number of the round.
    """
    axis = AXES[name]
    cpus = cpus_of_round(number, 1 if axis.is_on_one_cpu else None)
    turns = Turns({"seconds": axis.turn_seconds}, seconds * (RARE_FACTOR if axis.is_of_rare_events else 1))

    def arm(server: tuple[str, str], setting: Setting, label: str) -> Arm:
        request = {"workload": workload, "cpus": cpus, "setting": setting.to_json()}
        # In another dtype the arithmetic differs.
        return Arm(server, request, label, does_same_work=setting.dtype == axis.base.dtype)

    rivals = {}
    for value in values:
        setting = axis.at(name, value)
        server = SETTING if setting.allocator == DEFAULT else (f"the allocator {setting.allocator}", setting.allocator)
        rivals[value] = arm(server, setting, f"{workload} with {name} {value}")
    return Contest(arm(BASE, axis.base, "the default"), rivals, lambda _: {TIME: turns}, keeps_failures=True)


def start_server_of(data: Data, server: tuple[str, str], number: int) -> Server:
    """Start the server with this name and allocator.

    Parameters
    ----------
    number : int
        Number of the round.
    """
    name, allocator = server
    # OpenMP and MKL choose their threads. OpenBLAS stays at one: its threads start when it is loaded, and a process
    # with threads cannot be forked.
    environment = {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None, **draw_environment()}
    if allocator != DEFAULT:
        environment["LD_PRELOAD"] = str(ctypes.util.find_library(allocator))
    return start_server(
        name,
        "settings.settings_worker:prepare",
        {"data": data.to_json(), "allocator": allocator},
        hash_seed=number,
        environment=environment,
        timeout=TIMEOUT_SECONDS,
    )


def memory_ratios(each: SettingPairs) -> list[float]:
    """Return the bytes under the setting over those of the default, for each pair."""
    return [other / base for base, other in each.memory]


def _add(pairs: SettingPairs, turns: PairTurns) -> None:
    """Add the turns of one round to those of the same setting."""
    if turns.failure:
        pairs.failure = turns.failure
        return
    pairs.blocks.append(turns.blocks[TIME])
    a, b = turns.memory
    pairs.memory.append((a, b))
