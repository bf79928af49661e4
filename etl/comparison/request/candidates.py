"""Candidates: the ways to load that are compared, their settings, stores and threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from etl.functions import PICKLED
from etl.measuring.values import JsonValues
from etl.strategies import Strategy, find


@dataclass(frozen=True)
class Candidate(JsonValues):
    """One way to load that is compared with others.

    Attributes
    ----------
    strategy : str
        Name of the strategy, or "package.module:function" for a user's loader.
    format : str or None
        Format of its store; None if it reads none.
    stage : str or None
        Last stage before its store; `etl.stages.pipeline.READ` for a store of encoded records. None without a store.
    label : str or None
        Name in reports; None for the name of the strategy.
    settings : tuple of (str, value)
        Settings that differ from those of the comparison, sorted by name. Those of this package's strategies are
        "compute_threads", "loading_threads", "workers" ("thread" or "process"), "prefetch_size", "decoder" and
        "compression"; a user's loader has those that it declares.
    """

    strategy: str
    format: str | None = None
    stage: str | None = None
    label: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, given: str) -> Candidate:
        """Return the candidate that "STRATEGY" or "LABEL=STRATEGY" names.

        A function without a label is called by its name.

        Raises
        ------
        ValueError
            If there is no such strategy, or no label before the "=".
        """
        before, carried, path = given.partition(PICKLED)  # a path may contain "="
        label, equals, strategy = before.rpartition("=")
        strategy += carried + path
        if equals and not label:
            raise ValueError(f"{given!r} has no name before the =; give one, such as again=raw")
        found = find(strategy)
        if found.is_foreign and not label:
            label = strategy.rpartition(":")[2].rpartition(".")[2]
        return cls(found.name, label=label or None)

    def with_settings(self, settings: Mapping[str, Any]) -> Candidate:
        """Return the candidate with other settings; those of a store may have a "format" and a "stage", too."""
        others = dict(settings)
        stored = () if self.is_foreign else ("format", "stage")
        kept = {name: others.pop(name) for name in stored if name in others}
        return replace(self, **kept, settings=tuple(sorted(others.items())))

    def setting(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting; `default` if it is that of the comparison."""
        return dict(self.settings).get(name, default)

    @property
    def name(self) -> str:
        """Name in reports, unless there are several formats or stages: the label or the strategy."""
        return self.label or self.strategy

    @property
    def origin(self) -> Candidate:
        """The candidate without settings, format and stage: loaders are imported, tried and prepared once for all."""
        return Candidate(self.strategy, label=self.label)

    @property
    def store(self) -> StoreKind:
        """The store that it reads; raise `ValueError` if it reads none."""
        if self.format is None or self.stage is None:
            raise ValueError(f"{self.strategy} reads no store")
        return StoreKind(self.format, self.stage, self.setting("compression"), self.setting("decoder"))

    @property
    def kind(self) -> Strategy:
        """Properties of its strategy, with the kind of workers that its settings name."""
        found, workers = find(self.strategy), self.setting("workers")
        return found if found.is_foreign or workers is None else replace(found, ahead=workers)

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
        """True if a user's function loads."""
        return self.kind.is_foreign

    @property
    def worker_processes(self) -> bool:
        """True if worker processes load, rather than threads."""
        return self.kind.uses_processes


@dataclass(frozen=True)
class StoreKind(JsonValues):
    """The content and format of a store of the comparison: of records as they are after `stage`.

    Only some formats have a compression. The decoder is None for that of the comparison.
    """

    format: str
    stage: str
    compression: str | None = None
    decoder: str | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return ".".join(filter(None, (self.stage, self.decoder, self.compression, self.format, "store")))


@dataclass(frozen=True)
class CpuSplit(JsonValues):
    """A CPU split: the threads of compute, and the threads or worker processes that load during compute.

    There are 0 of the latter if the training loop itself loads.
    """

    compute: int
    loading: int

    @classmethod
    def usual(cls, cpus: int) -> list[CpuSplit]:
        """Return the ways to split `cpus`: half of them for each; all but one for either; all for both."""
        half, all_but_one = max(1, cpus // 2), max(1, cpus - 1)
        return [cls(max(1, cpus - half), half), cls(all_but_one, 1), cls(1, all_but_one), cls(cpus, cpus)]
