"""A cell: one combination of the axes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BATCH_SIZES = (1, 32, 128)
DTYPES = ("float32", "float16", "bfloat16", "float64")
GARBAGE_COLLECTION = ("default", "off", "freeze")
HEAPS = ("default", "retain")
# Looked up without importing torch, which asv's own processes do not need. A driver without a usable device shows as a
# failed cell, not as a silent n/a.
BACKENDS = ("cpu", "cuda") if Path("/proc/driver/nvidia/version").exists() else ("cpu",)


@dataclass(frozen=True)
class Cell:
    """One way to load and train. The defaults are the base point: plain presaved, in which both ETL and compute are
    paid in full, so that whatever an axis changes shows in the wall time.
    """

    strategy: str = "presaved"
    batch_size: int = 32
    dtype: str = "float32"
    backend: str = "cpu"
    garbage_collection: str = "default"
    heap: str = "default"

    @property
    def is_async(self) -> bool:
        return self.strategy.startswith("async-")

    @property
    def is_presaved(self) -> bool:
        return self.strategy.endswith("presaved")

    @property
    def work(self) -> tuple[Any, ...]:
        """What must be the same for two cells to load the same batches and train to the same score."""
        return self.batch_size, self.dtype, self.backend

    def as_dict(self) -> dict[str, Any]:
        """JSON values, from which `Cell(**values)` is this cell again."""
        return asdict(self)
