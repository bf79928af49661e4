"""How a strategy uses its CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from etl.measuring.values import JsonValues


@dataclass(frozen=True)
class Threads(JsonValues):
    """Threads of compute, and threads or processes that load beside it; 0 if the training loop's own does."""

    compute: int
    loading: int
