"""How much is measured: the profile that the environment variable FAIR_ETL_PROFILE names, "quick" by default."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.cell import STRATEGIES, Cell

PROFILE_VARIABLE = "FAIR_ETL_PROFILE"
ROUNDS_VARIABLE = "FAIR_ETL_ROUNDS"
AXES_VARIABLE = "FAIR_ETL_AXES"
# Raised when the way to take a figure changes: asv then drops the older figures instead of comparing the two.
METHOD_VERSION = 2
AXES = tuple(field.name for field in fields(Cell))


@dataclass(frozen=True)
class Profile:
    """`samples` photographs resized to `image_size`; each cell measured in `rounds` processes, `seconds_per_figure`
    seconds in each. One axis at a time, with `grid` every combination of those in the grid, too. Runtime settings take
    turns in `setting_rounds` pairs of processes; in none they are not measured.
    """

    name: str
    samples: int
    image_size: int
    rounds: int
    seconds_per_figure: float
    grid: bool
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    axes: tuple[str, ...] = AXES
    setting_rounds: int = 0

    @property
    def version(self) -> str:
        """The `version` of all figures for asv: those of different profiles do not belong in one history."""
        return f"{METHOD_VERSION}-{self.name}"


def chosen_profile() -> Profile:
    """The profile in force; FAIR_ETL_ROUNDS replaces its number of rounds and FAIR_ETL_AXES, names with commas between,
    the axes that it varies. Raises `ValueError` for an unknown profile or axis.
    """
    profiles = json.loads(Path(__file__).with_name("profiles.json").read_text())
    name = os.environ.get(PROFILE_VARIABLE, "quick")
    if name not in profiles:
        raise ValueError(f"{PROFILE_VARIABLE}={name!r} is not one of {', '.join(profiles)}")
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in profiles[name].items()
    }
    if ROUNDS_VARIABLE in os.environ:
        settings["rounds"] = int(os.environ[ROUNDS_VARIABLE])
    if AXES_VARIABLE in os.environ:
        settings["axes"] = tuple(os.environ[AXES_VARIABLE].split(","))
        unknown = [axis for axis in settings["axes"] if axis not in AXES]
        if unknown:
            raise ValueError(f"{AXES_VARIABLE}: {', '.join(map(repr, unknown))} is not one of {', '.join(AXES)}")
    return Profile(name, **settings)
