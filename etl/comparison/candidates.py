"""Candidates: the ways to load that are compared, and the threads of each."""

from __future__ import annotations

from dataclasses import dataclass

from etl import strategies
from etl.measuring.values import JsonValues
from etl.strategies import Strategy


@dataclass(frozen=True)
class Candidate(JsonValues):
    """One way to load that is compared with others.

    Attributes
    ----------
    strategy : str
        Name of the strategy, or "package.module:function" for a loader of the user.
    format : str or None
        Format of its store; None if it reads none.
    stage : str or None
        Last stage before its store; `etl.stages.pipeline.READ` for a store of encoded records. None without a store.
    label : str or None
        Name in reports; None for the name of the strategy.
    """

    strategy: str
    format: str | None = None
    stage: str | None = None
    label: str | None = None

    @classmethod
    def parse(cls, given: str) -> Candidate:
        """Return the candidate that "STRATEGY" or "LABEL=STRATEGY" names.

        A function without a label is called by its name.

        Raises
        ------
        ValueError
            If there is no such strategy, or no label before the "=".
        """
        label, equals, strategy = given.rpartition("=")
        if equals and not label:
            raise ValueError(f"{given!r} has no name before the =; give one, such as again=raw")
        found = strategies.find(strategy)
        if found.is_foreign and not label:
            label = strategy.rpartition(":")[2].rpartition(".")[2]
        return cls(found.name, label=label or None)

    @property
    def kind(self) -> Strategy:
        """Properties of its strategy."""
        return strategies.find(self.strategy)

    @property
    def is_ahead(self) -> bool:
        """True if it loads batches during compute in a way that is known here."""
        return self.kind.loads_ahead

    @property
    def is_presaved(self) -> bool:
        """True if it reads a store that the comparison writes."""
        return self.kind.reads_store

    @property
    def is_foreign(self) -> bool:
        """True if a function of the user loads."""
        return self.kind.is_foreign

    @property
    def worker_processes(self) -> bool:
        """True if worker processes load, rather than threads."""
        return self.kind.uses_processes


@dataclass(frozen=True)
class Threads(JsonValues):
    """A CPU split: the threads of a candidate.

    Attributes
    ----------
    compute : int
        Threads of compute.
    loading : int
        Threads or worker processes that load during compute; 0 if the training loop itself loads.
    """

    compute: int
    loading: int
