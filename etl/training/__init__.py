"""Training with any iterator: `fit`, its listeners, backends and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.lazy_names import lazy_names

if TYPE_CHECKING:
    from etl.training.backends import Backend, backend
    from etl.training.checkpoint import Checkpoint
    from etl.training.early_stopping import EarlyStopping
    from etl.training.fit import FitResult, RankResult
    from etl.training.inference import ParallelInference
    from etl.training.listeners import Iteration, Listener, Performance, PerformanceListener
    from etl.training.parallel import fit_parallel
    from etl.training.ranks import RankError
    from etl.training.request_queue import QueueFullError

__all__ = [
    "Backend",
    "Checkpoint",
    "EarlyStopping",
    "FitResult",
    "Iteration",
    "Listener",
    "ParallelInference",
    "Performance",
    "PerformanceListener",
    "QueueFullError",
    "RankError",
    "RankResult",
    "backend",
    "fit_parallel",
]

__getattr__ = lazy_names(
    __name__,
    {
        "etl.training.backends": ("Backend", "backend"),
        "etl.training.checkpoint": ("Checkpoint",),
        "etl.training.early_stopping": ("EarlyStopping",),
        "etl.training.fit": ("FitResult", "RankResult"),
        "etl.training.inference": ("ParallelInference",),
        "etl.training.listeners": ("Iteration", "Listener", "Performance", "PerformanceListener"),
        "etl.training.parallel": ("fit_parallel",),
        "etl.training.ranks": ("RankError",),
        "etl.training.request_queue": ("QueueFullError",),
    },
)
