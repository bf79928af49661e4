"""A candidate: one way to load that is compared with the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STRATEGIES = ("raw", "async-raw", "process-raw", "presaved", "async-presaved")
BY_DEFAULT = ("raw", "async-raw", "presaved", "async-presaved")


@dataclass(frozen=True)
class Candidate:
    """A strategy and, where it reads a store, the store's format and the stage that the pipeline was cut after
    (`etl.cut.READ`: before its first).
    """

    strategy: str
    format: str | None = None
    stage: str | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether it loads while compute is at work."""
        return not self.strategy.startswith(("raw", "presaved"))

    @property
    def is_presaved(self) -> bool:
        """Whether it reads a store."""
        return self.strategy.endswith("presaved")

    @property
    def worker_processes(self) -> bool:
        """Whether processes load, and not threads."""
        return self.strategy.startswith("process-")

    def as_dict(self) -> dict[str, Any]:
        """JSON values, from which `Candidate(**values)` is this one again."""
        return asdict(self)
