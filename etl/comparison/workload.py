"""The work of a comparison: its records, the files that hold them, and how each candidate loads them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import presave
from etl import strategies
from etl.comparison.settings import TRAINING, Candidate, Settings, Threads
from etl.iterators import BatchIterator, PresavedIterator, RawIterator
from etl.loading.batch_plan import Loader
from etl.loading.padding import Padding
from etl.loading.records import Records, ragged_after
from etl.measuring.page_cache import release_pages
from etl.measuring.values import JsonValues
from etl.sources import ImageFolder, open_source
from etl.sources.record import Record, source_name
from etl.stages.pipeline import READ, Pipeline
from etl.stages.presets import default_split, open_pipeline


@dataclass(frozen=True)
class ThreadChoice(JsonValues):
    """The CPU split that was chosen for a candidate."""

    candidate: Candidate
    threads: Threads


@dataclass(frozen=True)
class WorkloadState(JsonValues):
    """The part of a workload that changes during a comparison.

    Attributes
    ----------
    records : int
        Records that are measured.
    plain_compute_threads : int or None
        Compute threads of strategies that do not load ahead; None for all CPUs.
    chosen : list of ThreadChoice
        CPU splits that were chosen in trials.
    """

    records: int
    plain_compute_threads: int | None
    chosen: list[ThreadChoice]


class Workload:
    """Records of a source, and the ways in which candidates load them.

    All records are selected until `select` is called.

    Parameters
    ----------
    settings : Settings
        Settings of the comparison.
    folder : Path
        Folder for the stores.
    cpus : int
        CPUs for loading and compute together.

    Raises
    ------
    ValueError
        If the source cannot be opened, or its pipeline does not have the stage of `settings.until`.
    """

    def __init__(self, settings: Settings, folder: Path, cpus: int) -> None:
        self.settings = settings
        self.folder = folder
        self.plain_compute_threads: int | None = None
        self.chosen: dict[Candidate, Threads] = {}
        self.cpus = cpus
        source = open_source(settings.source, settings.split, **settings.table_options)
        self.pipeline: Pipeline = open_pipeline(settings.pipeline, source, settings.size, settings.decoder)
        self.source = source
        self.records = Subset(source, len(source), settings.seed)
        self.stages = (READ, *self.pipeline.names)
        self.presave_stage = settings.until or default_split(self.pipeline)
        if self.presave_stage not in self.stages:
            raise ValueError(f"--until {self.presave_stage}: the pipeline has {', '.join(self.stages)}")
        ragged = ragged_after(getattr(source, "ragged", ()), self.pipeline.stages)
        self.padding = Padding() if ragged else None
        # A source computes its lengths on first use. Do it here once, not in every forked process.
        _ = getattr(source, "lengths", None) if ragged else None
        if settings.cache == "cold":
            # Opening the source may have mapped files, whose pages would stay in memory while this process runs.
            release_pages()

    def select(self, count: int) -> None:
        """Select `count` random records, or all if the source has no more."""
        if count == len(self.records):
            return
        self.records = Subset(self.source, count, self.settings.seed)

    def state(self) -> WorkloadState:
        """Return the state for `restore` in another process."""
        chosen = [ThreadChoice(candidate, threads) for candidate, threads in self.chosen.items()]
        return WorkloadState(len(self.records), self.plain_compute_threads, chosen)

    def restore(self, state: WorkloadState) -> None:
        """Take over the state of a workload in another process."""
        self.select(state.records)
        self.plain_compute_threads = state.plain_compute_threads
        self.chosen = {each.candidate: each.threads for each in state.chosen}

    def candidates(self) -> list[Candidate]:
        """Return the candidates that are compared. A strategy that reads a store is one candidate per format."""
        chosen: list[Candidate] = []
        for candidate in self._requested():
            if candidate.is_presaved:
                chosen += [replace(candidate, format=each, stage=self.presave_stage) for each in self.settings.formats]
            else:
                chosen.append(candidate)
        return chosen

    def stage_candidates(self) -> list[Candidate]:
        """Return the last requested strategy that reads a store, once for a store after each stage.

        The list is empty if no strategy reads a store.
        """
        presaved = [each for each in self._requested() if each.is_presaved][-1:]
        return [
            replace(each, format=self.settings.formats[0], stage=stage) for each in presaved for stage in self.stages
        ]

    def _requested(self) -> list[Candidate]:
        return [Candidate.parse(each) for each in self.settings.strategies]

    def name(self, candidate: Candidate) -> str:
        """Return the candidate's name in reports: with its format if there are several, and with any unusual stage."""
        several = candidate.is_presaved and len(self.settings.formats) > 1
        stage = f"@{candidate.stage}" if candidate.stage not in (None, self.presave_stage) else ""
        return f"{candidate.label or candidate.strategy}{f':{candidate.format}' if several else ''}{stage}"

    def threads(self, candidate: Candidate, is_on_device: bool) -> Threads:
        """Return the CPU split of `candidate`.

        That is the split that trials chose for it, or for the same candidate with the compared stage. If there is none,
        it is the first of `splits`.
        """
        compared = replace(candidate, stage=self.presave_stage)
        chosen = self.chosen.get(candidate) or self.chosen.get(compared)
        return chosen or self.splits(candidate, is_on_device)[0]

    def splits(self, candidate: Candidate, is_on_device: bool) -> list[Threads]:
        """Return the ways to split the CPUs between compute and loading. The first is used if none was chosen.

        The usual order is: half of the CPUs for each; all but one for compute; all but one for loading; all for both,
        which then share them. If compute is on a device, all but one for loading comes first. If compute is simulated,
        which takes no CPU, there is one compute thread, and all CPUs for loading come first. A strategy that does not
        load ahead has one split: it computes with all CPUs, or with `plain_compute_threads` if they were faster.
        """
        if not candidate.is_ahead or self.settings.prefetch_size == 0:
            return [Threads(self.plain_compute_threads or self.cpus, 0)]
        half, all_but_one = max(1, self.cpus // 2), max(1, self.cpus - 1)
        halves, all_shared = Threads(max(1, self.cpus - half), half), Threads(self.cpus, self.cpus)
        found = [halves, Threads(all_but_one, 1), Threads(1, all_but_one), all_shared]
        if is_on_device:
            found.insert(0, Threads(1, all_but_one))
        if self.settings.compute != TRAINING:
            found = [Threads(1, each.loading) for each in (all_shared, *found)]
        return list(dict.fromkeys(found))

    def store_path(self, format: str, stage: str) -> Path:
        """Return the path of the store for this format and stage."""
        return self.folder / f"{stage}.{format}.store"

    def write(self, format: str, stage: str, jobs: int) -> presave.Store:
        """Presave the selected records after `stage`.

        Parameters
        ----------
        format : str
            Format of the store.
        stage : str
            Last stage that runs before the records are stored.
        jobs : int
            Worker processes that write.

        Returns
        -------
        The open store.
        """
        done, _ = self.pipeline.split(stage)
        return presave.write(self.store_path(format, stage), Records(self.records, done), format=format, jobs=jobs)

    def iterator(
        self, candidate: Candidate, threads: Threads, watch: Callable[[Loader], Loader] | None = None
    ) -> BatchIterator:
        """Return the iterator that `candidate` trains from. All candidates shuffle with the same seed.

        Parameters
        ----------
        candidate : Candidate
            The way to load.
        threads : Threads
            Its CPU split.
        watch : callable, optional
            Returns a loader that replaces the one of the iterator, for example one that traces it.
        """
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
        """Return the iterator that strategy raw trains from."""
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
        """Open the store of a presaved candidate. The store is trusted, since this comparison wrote it."""
        return presave.open_store(self.store_path(str(candidate.format), str(candidate.stage)), trusted=True)

    def files(self, candidate: Candidate) -> list[Path]:
        """Return the files that an epoch of `candidate` reads."""
        if candidate.is_presaved:
            return all_files(self.store_path(str(candidate.format), str(candidate.stage)))
        return source_files(self.settings.source, self.records)

    def as_dict(self) -> Mapping[str, Any]:
        """Return JSON values from which another process makes the same workload."""
        return {"settings": self.settings.as_dict(), "folder": str(self.folder), "cpus": self.cpus}


class OwningIterator(PresavedIterator):
    """A presaved iterator that closes its store when it is closed."""

    def close(self) -> None:
        super().close()
        self._store.close()


class Subset:
    """Random records of a source, in the order of the source.

    It has the attributes `classes`, `ragged`, `lengths` and `describe` if the source has them.

    Parameters
    ----------
    source : sequence of records
        The source.
    count : int
        Records to choose; all if the source has no more.
    seed : int
        The same seed chooses the same records.
    """

    def __init__(self, source: Any, count: int, seed: int) -> None:
        self.source = source
        self.name = source_name(source)
        every = np.arange(len(source))
        chosen = np.random.default_rng(seed).choice(every, count, replace=False) if count < len(every) else every
        self.indices = np.sort(chosen)
        for name in ("classes", "ragged"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Record:
        """Return record `index` of the subset."""
        record: Record = self.source[int(self.indices[index])]
        return record

    def __getattr__(self, name: str) -> Any:
        # If the source has no `lengths`, this subset must not have them either.
        if name == "lengths" and "source" in self.__dict__:
            lengths = self.source.lengths
            if isinstance(lengths, dict):
                return {field: np.asarray(values)[self.indices] for field, values in lengths.items()}
            return np.asarray(lengths)[self.indices]
        raise AttributeError(name)

    def describe(self, index: int) -> str:
        """Return the description of record `index` of the subset for messages."""
        number = int(self.indices[index])
        describe = getattr(self.source, "describe", None)
        return f"record {number}, {describe(number)}" if describe is not None else f"record {number}"


def source_files(path: str, records: Subset) -> list[Path]:
    """Return the files that hold `records` of the source at `path`.

    For an image folder these are the files of the records. For other sources they are all files of the source.
    """
    if isinstance(records.source, ImageFolder):
        root = records.source.root
        return [root / records.source.files[index] for index in records.indices.tolist()]
    return all_files(path)


def all_files(path: str | Path) -> list[Path]:
    """Return the file at `path`, all files below the folder, or all files that match the pattern."""
    found = Path(path)
    if found.is_dir():
        return sorted(each for each in found.rglob("*") if each.is_file())
    return [found] if found.exists() else sorted(Path(each) for each in glob.glob(str(path)))  # noqa: PTH207 - as the source reads it
