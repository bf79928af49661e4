"""A cell: one combination of the axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Strategy:
    """How a strategy loads."""

    reads_store: bool
    loads_ahead: bool


@dataclass(frozen=True)
class Workers:
    """Workers that load ahead: `count` of `kind` "thread" or "process"."""

    kind: str
    count: int


# By name, as asv's histories have them.
STRATEGIES = {
    "raw": Strategy(reads_store=False, loads_ahead=False),
    "async-raw": Strategy(reads_store=False, loads_ahead=True),
    "presaved": Strategy(reads_store=True, loads_ahead=False),
    "async-presaved": Strategy(reads_store=True, loads_ahead=True),
}
WORKERS = {"thread 1": Workers("thread", 1), "thread 2": Workers("thread", 2), "process 2": Workers("process", 2)}


@dataclass(frozen=True)
class Cell:
    """One way to load and train; each field is an axis. The defaults are the base point: plain presaved, in which both
    ETL and compute are paid in full, so that whatever an axis changes shows in the wall time.

    `prefetch_size` and `workers` say how the async strategies load ahead, `presave_format` and `presave_stage` what the
    presaved ones read; the others pass over them.
    """

    strategy: str = "presaved"
    batch_size: int = 32
    dtype: str = "float32"
    backend: str = "cpu"
    garbage_collection: str = "default"
    heap: str = "default"
    prefetch_size: int = 2
    workers: str = "thread 1"
    presave_format: str = "npy"
    presave_stage: str = "resize"

    @property
    def is_async(self) -> bool:
        return STRATEGIES[self.strategy].loads_ahead

    @property
    def is_presaved(self) -> bool:
        return STRATEGIES[self.strategy].reads_store

    @property
    def worker_kind(self) -> str:
        """Threads or processes: "thread" or "process"."""
        return WORKERS[self.workers].kind

    @property
    def worker_count(self) -> int:
        return WORKERS[self.workers].count

    @property
    def store(self) -> str:
        """The name of the store that the presaved strategies read: its format, and the last stage done before."""
        return f"{self.presave_format} after {self.presave_stage}"

    @property
    def work(self) -> tuple[Any, ...]:
        """What must be the same for two cells to load the same batches and train to the same score."""
        return self.batch_size, self.dtype, self.backend
