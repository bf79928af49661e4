"""What `fit` tells its listeners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Iteration:
    """One iteration: a batch waited for, and trained on.

    `number` counts from 0 over the whole fit. `etl_seconds` is the wait for the batch, `compute_seconds` moving it to
    the device, forward, backward and update; `seconds` is from the end of the iteration before (for the first, from
    the start of the epoch) to the end of this one, so that all iterations add up to the epoch. `score` is the loss, a
    tensor without gradient on the device: reading it waits for the device.
    """

    number: int
    epoch: int
    samples: int
    etl_seconds: float
    compute_seconds: float
    seconds: float
    score: Any
    device: str


class Listener(Protocol):
    """Follows a fit. `needs_times` asks `fit` to wait for the device in every iteration, so that times are exact."""

    needs_times: bool

    def fit_started(self) -> None:
        """Before the first batch is asked for."""

    def iteration_done(self, iteration: Iteration) -> None:
        """After every iteration."""

    def fit_ended(self) -> None:
        """After the last iteration; also when the fit failed."""
