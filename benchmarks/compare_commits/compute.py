"""What each batch is for in the wall time."""

from __future__ import annotations

from typing import Any

import numpy as np

UNITS = 64


class Layer:
    """A layer of a network forward and backward, by numpy in float32, with the weights as they are at first.

    The work is of the kind that training does, memory traffic included. torch would take three seconds to import, in
    every one of the fresh processes.
    """

    def __init__(self) -> None:
        self._weights: np.ndarray | None = None
        self.gradient = 0.0

    def __call__(self, batch: Any) -> None:
        features = np.asarray(batch.features, np.float32).reshape(len(batch), -1)
        if self._weights is None:
            self._weights = np.random.default_rng(0).standard_normal((features.shape[1], UNITS), np.float32)
        self.gradient = float((features.T @ (features @ self._weights))[0, 0])
