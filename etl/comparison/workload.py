"""The work of a comparison: the records, how each candidate loads them, and where its store is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import presave
from etl import strategies
from etl.comparison.candidate import Candidate
from etl.comparison.settings import TRAINING, Settings
from etl.comparison.source_files import all_files, source_files
from etl.comparison.subset import Subset
from etl.comparison.threads import Threads
from etl.iterators import BatchIterator, PresavedIterator, RawIterator
from etl.loading.batch_plan import Loader
from etl.loading.padding import Padding
from etl.loading.records import Records, ragged_after
from etl.measuring.page_cache import release_pages
from etl.measuring.values import JsonValues
from etl.sources import default_pipeline, open_source
from etl.stages.pipeline import READ, Pipeline
from etl.stages.presets import default_split


@dataclass(frozen=True)
class Split(JsonValues):
    """How a candidate splits its CPUs."""

    candidate: Candidate
    threads: Threads


@dataclass(frozen=True)
class State(JsonValues):
    """What of a workload changes while it is compared: how many records are measured, and how the CPUs are split."""

    records: int
    plain_compute: int | None
    chosen: list[Split]


class Workload:
    """`settings` on all records of its source, unless fewer are selected; stores are written below `folder`.

    Raises `ValueError` where the source cannot be opened or has no such stage.
    """

    def __init__(self, settings: Settings, folder: Path, cpus: int) -> None:
        self.settings = settings
        self.folder = folder
        self.plain_compute: int | None = None
        self.chosen: dict[Candidate, Threads] = {}
        self.cpus = cpus
        source = open_source(settings.source, settings.split, **settings.table_options)
        self.pipeline: Pipeline = default_pipeline(source, settings.size, settings.decoder)
        self.whole = source
        self.records = Subset(source, len(source), settings.seed)
        self.stages = (READ, *self.pipeline.names)
        self.cut = settings.until or default_split(self.pipeline)
        if self.cut not in self.stages:
            raise ValueError(f"--until {self.cut}: the pipeline has {', '.join(self.stages)}")
        ragged = ragged_after(getattr(source, "ragged", ()), self.pipeline.stages)
        self.padding = Padding() if ragged else None
        # A source counts them when it is first asked: here that is once, and not in every process that is forked.
        _ = getattr(source, "lengths", None) if ragged else None
        if settings.cache == "cold":
            # What opening the source has read of a mapped file would stay in memory for as long as this process runs.
            release_pages()

    def select(self, count: int) -> None:
        """Have `count` records from now on."""
        if count == len(self.records):
            return
        self.records = Subset(self.whole, count, self.settings.seed)

    def state(self) -> State:
        """Return what `restore` takes in another process."""
        chosen = [Split(candidate, threads) for candidate, threads in self.chosen.items()]
        return State(len(self.records), self.plain_compute, chosen)

    def restore(self, state: State) -> None:
        """Have what another process told with `state`."""
        self.select(state.records)
        self.plain_compute = state.plain_compute
        self.chosen = {each.candidate: each.threads for each in state.chosen}

    def candidates(self) -> list[Candidate]:
        """Those that are compared: each strategy, and each that reads a store in every format."""
        chosen: list[Candidate] = []
        for candidate in self._asked_for():
            if candidate.is_presaved:
                chosen += [replace(candidate, format=each, stage=self.cut) for each in self.settings.formats]
            else:
                chosen.append(candidate)
        return chosen

    def stage_candidates(self) -> list[Candidate]:
        """The same way to load from a store that was cut after each stage; none where nothing is presaved."""
        presaved = [each for each in self._asked_for() if each.is_presaved][-1:]
        return [
            replace(each, format=self.settings.formats[0], stage=stage) for each in presaved for stage in self.stages
        ]

    def _asked_for(self) -> list[Candidate]:
        return [Candidate.named(each) for each in self.settings.strategies]

    def name(self, candidate: Candidate) -> str:
        """What reports call it: the strategy, with what tells it from the others of the same."""
        several = candidate.is_presaved and len(self.settings.formats) > 1
        cut = f"@{candidate.stage}" if candidate.stage not in (None, self.cut) else ""
        return f"{candidate.label or candidate.strategy}{f':{candidate.format}' if several else ''}{cut}"

    def threads(self, candidate: Candidate, is_on_device: bool) -> Threads:
        """The split of `splits` that was chosen for `candidate`, or for the same strategy with the usual cut; the first
        of them if none was.
        """
        usual = replace(candidate, stage=self.cut)
        chosen = self.chosen.get(candidate) or self.chosen.get(usual)
        return chosen or self.splits(candidate, is_on_device)[0]

    def splits(self, candidate: Candidate, is_on_device: bool) -> list[Threads]:
        """Ways to split the CPUs that all have between compute and loading; the first is taken if none is tried.

        Half and half, all but one for either, and all of them for both, which then share them. All but one for loading
        is the first if compute is on a device, and all if it is a wait, which takes no CPU. A plain strategy does one
        after the other, and computes with all of them, or with `plain_compute` if that was seen to be faster.
        """
        if not candidate.is_ahead or self.settings.prefetch_size == 0:
            return [Threads(self.plain_compute or self.cpus, 0)]
        half, others = max(1, self.cpus // 2), max(1, self.cpus - 1)
        halves, all_shared = Threads(max(1, self.cpus - half), half), Threads(self.cpus, self.cpus)
        found = [halves, Threads(others, 1), Threads(1, others), all_shared]
        if is_on_device:
            found.insert(0, Threads(1, others))
        if self.settings.compute != TRAINING:
            found = [Threads(1, each.loading) for each in (all_shared, *found)]
        return list(dict.fromkeys(found))

    def store_path(self, format: str, stage: str) -> Path:
        """Where the store is, or will be."""
        return self.folder / f"{stage}.{format}.store"

    def write(self, format: str, stage: str, jobs: int) -> presave.Store:
        """Presave the records after `stage`."""
        done, _ = self.pipeline.split(stage)
        return presave.write(self.store_path(format, stage), Records(self.records, done), format=format, jobs=jobs)

    def iterator(
        self, candidate: Candidate, threads: Threads, watch: Callable[[Loader], Loader] | None = None
    ) -> BatchIterator:
        """What `candidate` trains from. All shuffle with the same seed. `watch` stands before what loads."""
        iterator: RawIterator | PresavedIterator
        if candidate.is_presaved:
            _, rest = self.pipeline.split(str(candidate.stage))
            iterator = OwningIterator(self.open(candidate), rest, **self._order)
        else:
            iterator = self.raw()
        if watch is not None:
            iterator.wrap_loader(watch)
        return strategies.find(candidate.strategy).wrap(iterator, self.settings.prefetch_size, threads.loading)

    def raw(self) -> RawIterator:
        """What strategy raw trains from."""
        return RawIterator(self.records, self.pipeline, **self._order)

    @property
    def _order(self) -> dict[str, Any]:
        return {
            "batch_size": self.settings.batch_size,
            "shuffle": True,
            "seed": self.settings.seed,
            "dtype": self.settings.dtype,
            "padding": self.padding,
        }

    def open(self, candidate: Candidate) -> presave.Store:
        """The store of a candidate that reads one; this comparison has written it, so it may be a pickle."""
        return presave.open_store(self.store_path(str(candidate.format), str(candidate.stage)), trusted=True)

    def files(self, candidate: Candidate) -> list[Path]:
        """The files that an epoch of `candidate` reads."""
        if candidate.is_presaved:
            return all_files(self.store_path(str(candidate.format), str(candidate.stage)))
        return source_files(self.settings.source, self.records)

    def as_dict(self) -> Mapping[str, Any]:
        """JSON values from which another process makes the same one."""
        return {"settings": self.settings.as_dict(), "folder": str(self.folder), "cpus": self.cpus}


class OwningIterator(PresavedIterator):
    """Closes its store when it is closed."""

    def close(self) -> None:
        super().close()
        self._store.close()
