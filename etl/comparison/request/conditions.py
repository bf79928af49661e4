"""The conditions of a comparison: what holds for every loader, in whatever interpreter it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from etl.arguments import parse_seconds
from etl.measuring.values import JsonValues
from etl.training.compute import INFERENCE, TRAINING

SIMULATED = re.compile(r"simulated:(?P<duration>[^,]+)(?P<sync>,sync)?")


@dataclass(frozen=True, kw_only=True)
class Conditions(JsonValues):
    """The part of the settings of a comparison that a measuring process needs for any loader.

    Attributes
    ----------
    batch_size : int
        Records per batch.
    dtype : str
        Dtype of features and weights.
    step : str or None
        "package.module:function" that returns the training step; it replaces the model.
    compute : str
        "training"; "inference", a forward pass of the model for each batch; or "simulated:DURATION" for a device that
        takes this long per batch and leaves the CPU free.
    sync_every_step : bool
        Wait for the device after every step, as "simulated:DURATION,sync" does. By default at most one step is in
        flight, as in a loop that reads its loss every few steps.
    cache : {"warm", "cold"}
        State of the page cache before each epoch.
    heap, gc : str
        `HeapPolicy` and `GcPolicy` of every process. With heap policies other than "retain", the speed of compute
        depends on where the heap of its process happens to end.
    seed : int
        Seed for shuffling and initial weights.
    """

    batch_size: int = 32
    dtype: str = "float32"
    step: str | None = None
    compute: str = TRAINING
    sync_every_step: bool = False
    cache: str = "warm"
    heap: str = "retain"
    gc: str = "default"
    seed: int = 0

    @classmethod
    def of(cls, settings: Conditions) -> Conditions:
        """Return the conditions alone of `settings`, which may have more fields."""
        return cls(**{each.name: getattr(settings, each.name) for each in fields(cls)})

    @property
    def simulated_seconds(self) -> float | None:
        """Seconds of simulated compute per batch; None if compute is real."""
        if self.compute in (TRAINING, INFERENCE):
            return None
        match = SIMULATED.fullmatch(self.compute)
        if match is None:
            raise ValueError(
                f"--compute must be {TRAINING}, {INFERENCE}, simulated:20ms or simulated:20ms,sync, not "
                f"{self.compute!r}"
            )
        return parse_seconds(match["duration"], "--compute simulated")

    @property
    def waits_for_steps(self) -> bool:
        """True if the training loop waits for the device after every step."""
        match = SIMULATED.fullmatch(self.compute)
        return self.sync_every_step or (match is not None and match["sync"] is not None)
