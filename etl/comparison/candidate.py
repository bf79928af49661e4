"""A candidate: one way to load that is compared with the others."""

from __future__ import annotations

from dataclasses import dataclass

from etl import strategies
from etl.measuring.values import JsonValues


@dataclass(frozen=True)
class Candidate(JsonValues):
    """A strategy and, if it reads a store, the store's format and the stage that the pipeline was cut after
    (`etl.stages.pipeline.READ`: before its first). `label` is what reports call it, if not as its strategy.
    """

    strategy: str
    format: str | None = None
    stage: str | None = None
    label: str | None = None

    @classmethod
    def named(cls, given: str) -> Candidate:
        """Return the candidate that "STRATEGY" or "LABEL=STRATEGY" asks for.

        Raises
        ------
        ValueError
            If there is no such strategy, or no label before the "=".
        """
        label, equals, strategy = given.rpartition("=")
        if equals and not label:
            raise ValueError(f"{given!r} has no name before the =, such as again=raw")
        return cls(strategies.find(strategy).name, label=label or None)

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
