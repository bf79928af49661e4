"""A candidate: one way to load that is compared with the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from etl import strategies


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
        return strategies.find(self.strategy).loads_ahead

    @property
    def is_presaved(self) -> bool:
        """Whether it reads a store."""
        return strategies.find(self.strategy).reads_store

    @property
    def worker_processes(self) -> bool:
        """Whether processes load, and not threads."""
        return strategies.find(self.strategy).uses_processes

    def as_dict(self) -> dict[str, Any]:
        """JSON values, from which `Candidate(**values)` is this one again."""
        return asdict(self)
