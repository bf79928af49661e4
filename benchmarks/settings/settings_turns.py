"""Settings take turns with the default."""

from __future__ import annotations

import ctypes.util
import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.cells import Profile
from benchmarks.journal import Kind, by_variant, open_rounds
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.turn_rounds import Arm, Pair, Pairs, PairTurns, TurnRounds, Turns, cpus_of_round
from benchmarks.measuring.values import JsonValues
from benchmarks.servers import start_server
from benchmarks.settings.setting import AXES, DEFAULT, unsupported_reason
from benchmarks.workload import Data, make_data

# One batch of photographs: epochs are short, so that a turn of one arm is a moment away from that of the other.
SAMPLES, IMAGE_SIZE = 32, 64
TIMEOUT_SECONDS = 120.0
# Workloads of rare events are measured this many times as long, so that enough events occur.
RARE_FACTOR = 4
# The only metric.
TIME = "epoch"
# Field of `Setting`, workload, value.
Key = tuple[str, str, str]


@dataclass
class SettingPairs(Pairs, JsonValues):
    """Pairs of the default (A) and a setting (B), or the reason why there are none.

    Attributes
    ----------
    memory : list of (int, int)
        Bytes of A and of B, for each pair.
    missing : str
        What the installed commit lacks for the setting.
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

    def rounded(self) -> SettingPairs:
        """Return the same with five digits of each time."""
        blocks = [[(float(f"{a:.5g}"), float(f"{b:.5g}")) for a, b in pair] for pair in self.blocks]
        return replace(self, blocks=blocks)


@dataclass(frozen=True)
class SettingRound(JsonValues):
    """The pairs of one round, or why there are none, by axis, workload and value."""

    pairs: list[tuple[Key, SettingPairs]]


# asv's pairs, by what was measured and round; and the rounds of the study.
JOURNAL: Kind[tuple[Key, int], PairTurns] = Kind("settings", tuple[Key, int], PairTurns)
SETTING_ROUNDS: Kind[int, SettingRound] = Kind("settings", int, SettingRound)


def joined(rounds: Iterable[SettingRound]) -> dict[Key, SettingPairs]:
    """Return the pairs of all rounds."""
    found: dict[Key, SettingPairs] = {}
    for key, pairs in (each for taken in rounds for each in taken.pairs):
        before = found.get(key, SettingPairs())
        found[key] = replace(
            pairs,
            blocks=before.blocks + pairs.blocks,
            memory=before.memory + pairs.memory,
            failure=before.failure or pairs.failure,
        )
    return found


def keys(axes: Iterable[str]) -> list[Key]:
    """Return the keys of all that is measured on `axes`."""
    return [
        (axis, workload, value) for axis in axes for workload in AXES[axis].workloads for value in AXES[axis].values
    ]


def take_turns(axes: Iterable[str], rounds: range, seconds: float, seed: int | None = None) -> dict[Key, SettingPairs]:
    """Measure settings in turns with the default. Every round imports both arms anew (`measuring/layout.py`).

    Parameters
    ----------
    axes : iterable of str
        Keys of `AXES`, all of whose values are measured on all of their workloads.
    seconds : float
        Time for the turns of a pair.
    seed : int or None
        Decides the order in each round, see `Rounds`.

    Raises
    ------
    DifferentWork
        If an epoch gave another result under a setting.
    MeasurementError
        If the default cannot be measured. If a setting fails, its result has the reason.
    """
    missing = {key: unsupported_reason(AXES[key[0]].at(key[0], key[2])) for key in keys(axes)}
    wanted = [key for key, reason in missing.items() if not reason]
    profile = Profile("settings", SAMPLES, IMAGE_SIZE, rounds.stop, seconds, grid=False)
    with tempfile.TemporaryDirectory() as folder, open_rounds(JOURNAL, wanted, profile) as journal:
        data = make_data(profile, Path(folder))

        def note_failure(key: Key, error: MeasurementError) -> None:
            if key[2] == DEFAULT:  # there is nothing to compare with
                raise error
            journal.note_failure((key, 0))

        taken = TurnRounds(
            wanted,
            lambda key, number: pair_of(*key, seconds, number),
            partial(start_server_of, data),
            taken=by_variant(journal.results),
            note=journal.note,
            on_failure=note_failure,
            seed=seed,
        )
        taken.finished = rounds.start
        taken.run(rounds.stop)
    return {
        key: SettingPairs(
            [each.blocks[TIME] for each in taken.samples.get(key, {}).values()],
            [each.memory for each in taken.samples.get(key, {}).values()],
            reason,
            taken.failed.get(key, ""),
            AXES[key[0]].is_of_rare_events,
        )
        for key, reason in missing.items()
    }


def pair_of(name: str, workload: str, value: str, seconds: float, number: int) -> Pair:
    """Return the pair of the default and the value of a `Key`, which takes turns for `seconds`, in a round."""
    axis = AXES[name]
    base, setting = axis.base, axis.at(name, value)
    cpus = cpus_of_round(number, 1 if axis.is_on_one_cpu else None)
    turns = Turns({"seconds": axis.turn_seconds}, seconds * (RARE_FACTOR if axis.is_of_rare_events else 1))
    server = "the setting" if setting.allocator == DEFAULT else f"the allocator {setting.allocator}"
    one, other = (
        Arm((role, each.allocator), {"workload": workload, "cpus": cpus, "setting": each.to_json()}, label)
        for role, each, label in (
            ("the default", base, "the default"),
            (server, setting, f"{workload} with {name} {value}"),
        )
    )
    # In another dtype the arithmetic differs.
    return Pair(one, other, lambda _: {TIME: turns}, is_same_work=setting.dtype == base.dtype)


def start_server_of(data: Data, server: tuple[str, str], number: int) -> Server:
    """Start the server with this name and allocator for a round."""
    name, allocator = server
    # OpenMP and MKL choose their threads. OpenBLAS stays at one: its threads start when it is loaded, and a process
    # with threads cannot be forked.
    environment: dict[str, str | None] = {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None}
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
