"""A listener that does nothing, for tests to add to."""

from __future__ import annotations

from typing import Any

from etl.training import Iteration


class NullListener:
    """Keeps the training that it listens to."""

    needs_times = False

    def training_started(self, training: Any) -> None:
        self.training = training

    def fit_started(self) -> None: ...

    def iteration_done(self, iteration: Iteration) -> None: ...

    def fit_ended(self) -> None: ...
