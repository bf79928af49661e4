"""The work of a comparison: its records, the files that hold them, and how each candidate loads them."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import presave
from etl.comparison.request.answers import TriedLoader
from etl.comparison.request.candidates import Candidate, StoreKind, Threads
from etl.comparison.request.records import Subset, UserLoaderSource
from etl.comparison.request.settings import Settings
from etl.comparison.worker.user_loader import UserLoader, files_below, task_of
from etl.iterators import BatchIterator, PresavedIterator, RawIterator
from etl.loading.batch import Batch
from etl.loading.batch_plan import Loader
from etl.loading.padding import Padding
from etl.loading.records import Records, ragged_after
from etl.loading.sampler import Sampler
from etl.measuring.page_cache import release_pages
from etl.measuring.ranks import Rank
from etl.measuring.sample import Recipe
from etl.measuring.values import JsonValues
from etl.sources import ImageFolder, MapDataset, open_source
from etl.sources.named import is_source_name
from etl.stages.pipeline import READ, Pipeline
from etl.stages.presets import default_split, open_pipeline
from etl.strategies.task import Task
from presave.thread_safety import is_thread_safe, unopened

# Batches that may be in flight at the start of an epoch, at least.
MIN_START_UP = 2


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
    cpus : int
        CPUs for loading and compute together, of each rank if there are several.

    Attributes
    ----------
    rank : Rank
        The rank that this process loads and computes for.
    crowding : float
        Ranks that share each CPU, at least 1.
    is_on_device : bool
        True if compute is known to run on a device other than the CPU.

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
        self.rank = Rank(world_size=settings.ranks)
        self.crowding = 1.0
        self.is_on_device = False
        self.tried: dict[Candidate, TriedLoader] = {}
        self.prepare_seconds_per_record: dict[Candidate, float] = {}
        self.asked_for: dict[Candidate, set[str]] = {}
        source = self._open_source()
        self._pipelines: dict[str, Pipeline] = {}
        self.source = source
        self.is_thread_safe = is_thread_safe(source)
        self.pipeline = self.decoded_by(settings.decoder)
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

    @property
    def compute_crowding(self) -> float:
        """Ranks whose compute shares each CPU; a simulated device takes none."""
        return self.crowding if self.settings.simulated_seconds is None else 1.0

    def _open_source(self) -> Any:
        """Open the source. One that only user loaders can read is a `UserLoaderSource`."""
        settings = self.settings
        try:
            return open_source(settings.source, settings.split, **settings.table_options)
        except (ValueError, OSError):
            if is_source_name(settings.source) or not Path(settings.source).exists():
                raise
            if not all(each.is_foreign for each in self._requested()):
                raise
            return UserLoaderSource(settings.source)

    def select(self, count: int) -> None:
        """Select `count` random records, or all if the source has no more."""
        if count == len(self.records):
            return
        self.records = Subset(self.source, count, self.settings.seed)

    @property
    def is_partial(self) -> bool:
        """True if not all records of the source are selected."""
        return len(self.records) < len(self.source)

    def state(self) -> WorkloadState:
        """Return the state for `restore` in another process."""
        chosen = [ThreadChoice(candidate, threads) for candidate, threads in self.chosen.items()]
        return WorkloadState(len(self.records), self.plain_compute_threads, chosen)

    def restore(self, state: WorkloadState) -> None:
        """Take over the state of a workload in another process."""
        self.select(state.records)
        self.plain_compute_threads = state.plain_compute_threads
        self.chosen = {each.candidate: each.threads for each in state.chosen}

    def decoded_by(self, decoder: str) -> Pipeline:
        """Return the pipeline with this decoder; a user's pipeline has its own."""
        if decoder not in self._pipelines:
            self._pipelines[decoder] = open_pipeline(self.settings.pipeline, self.source, self.settings.size, decoder)
        return self._pipelines[decoder]

    def pipeline_of(self, candidate: Candidate | StoreKind) -> Pipeline:
        """Return the pipeline of a candidate, or of what is written to a store."""
        own = candidate.decoder if isinstance(candidate, StoreKind) else candidate.setting("decoder")
        return self.pipeline if own is None else self.decoded_by(own)

    def candidates(self) -> list[Candidate]:
        """Return the candidates that are compared.

        A strategy that reads a store is one candidate per format, unless its settings name one.
        """
        chosen: list[Candidate] = []
        for candidate in self._requested():
            if candidate.is_presaved:
                formats = self.settings.formats if candidate.format is None else (candidate.format,)
                stage = candidate.stage or self.presave_stage
                chosen += [replace(candidate, format=each, stage=stage) for each in formats]
            else:
                chosen.append(candidate)
        return chosen

    def stage_candidates(self) -> list[Candidate]:
        """Return the last requested strategy that reads a store, once for a store after each stage.

        The list is empty if that was not asked for, or no strategy reads a store.
        """
        if not self.settings.stages:
            return []
        presaved = [each.origin for each in self._requested() if each.is_presaved][-1:]
        return [
            replace(each, format=self.settings.formats[0], stage=stage) for each in presaved for stage in self.stages
        ]

    def _requested(self) -> list[Candidate]:
        configured = self.settings.configured
        parsed = map(Candidate.parse, self.settings.strategies)
        return [each.with_settings(configured.get(each.label or each.strategy, {})) for each in parsed]

    def name(self, candidate: Candidate) -> str:
        """Return the candidate's name in reports: with its format if there are several, and with any unusual stage."""
        several = candidate.is_presaved and len(self.settings.formats) > 1
        label = candidate.label or candidate.strategy
        configured = self.settings.configured.get(label, {})
        several = several and "format" not in configured
        usual = configured.get("stage", self.presave_stage)
        stage = f"@{candidate.stage}" if candidate.stage not in (None, usual) else ""
        return f"{label}{f':{candidate.format}' if several else ''}{stage}"

    def threads(self, candidate: Candidate, is_on_device: bool) -> Threads:
        """Return the CPU split of `candidate`.

        That is the split that trials chose for it, or for the same candidate with the compared stage. If there is none,
        it is the first of `splits`.
        """
        compared = replace(candidate, stage=self.presave_stage)
        chosen = self.chosen.get(candidate) or self.chosen.get(compared)
        return chosen or self.splits(candidate, is_on_device)[0]

    def prefetch_size(self, candidate: Candidate) -> int:
        """Return the batches that `candidate` loads ahead, if it does that."""
        return int(candidate.setting("prefetch_size", self.settings.prefetch_size))

    def splits(self, candidate: Candidate, is_on_device: bool) -> list[Threads]:
        """Return the ways to split the CPUs between compute and loading. The first is used if none was chosen.

        The usual order is: half of the CPUs for each; all but one for compute; all but one for loading; all for both,
        which then share them. If compute is on a device, all but one for loading comes first. If compute is simulated,
        which takes no CPU, there is one compute thread, and all CPUs for loading come first. One thread loads from a
        source that is not thread-safe. A strategy that does not load ahead has one split: it computes with all CPUs, or
        with `plain_compute_threads` if they were faster. So has a candidate whose settings name its threads.
        """
        compute = candidate.setting("compute_threads")
        if compute is not None:
            return [Threads(compute, candidate.setting("loading_threads", 0))]
        if not candidate.is_ahead or self.prefetch_size(candidate) == 0:
            return [Threads(self.plain_compute_threads or self.cpus, 0)]
        half, all_but_one = max(1, self.cpus // 2), max(1, self.cpus - 1)
        halves, all_shared = Threads(max(1, self.cpus - half), half), Threads(self.cpus, self.cpus)
        found = [halves, Threads(all_but_one, 1), Threads(1, all_but_one), all_shared]
        if is_on_device:
            found.insert(0, Threads(1, all_but_one))
        if self.settings.simulated_seconds is not None:
            found = [Threads(1, each.loading) for each in (all_shared, *found)]
        if self.has_one_reader(candidate):
            found = [Threads(each.compute, 1) for each in found]
        return list(dict.fromkeys(found))

    def has_one_reader(self, candidate: Candidate) -> bool:
        """Return True if threads of `candidate` would read a source that only one thread may read at a time."""
        reads_source = not (candidate.is_presaved or candidate.is_foreign or candidate.worker_processes)
        return reads_source and not self.is_thread_safe

    def store_path(self, store: StoreKind) -> Path:
        """Return the path of a store."""
        return self.folder / store.name

    def write(self, store: StoreKind, jobs: int) -> presave.Store:
        """Presave the selected records, in `jobs` worker processes, and return the open store."""
        done, _ = self.pipeline_of(store).split(store.stage)
        options = {} if store.compression is None else {"compression": store.compression}
        records = Records(self.records, done)
        return presave.write(self.store_path(store), records, format=store.format, jobs=jobs, options=options)

    def iterator(
        self, candidate: Candidate, threads: Threads, watch: Callable[[Loader], Loader] | None = None
    ) -> BatchIterator:
        """Return the iterator that `candidate` trains from. All candidates shuffle with the same seed.

        Parameters
        ----------
        watch : callable, optional
            Returns a loader that replaces the one of the iterator, for example one that traces it.
        """
        iterator: RawIterator | PresavedIterator
        if candidate.is_presaved:
            _, rest = self.pipeline_of(candidate).split(str(candidate.stage))
            iterator = OwningIterator(self.open(candidate), rest, **self._order)
        else:
            # Each iterator has files and connections of its own.
            iterator = RawIterator(unopened(self.records), self.pipeline_of(candidate), **self._order)
        if self.rank.world_size > 1:
            iterator = iterator.shard(self.rank.number, self.rank.world_size)
        if watch is not None:
            iterator.wrap_loader(watch)
        return candidate.kind.wrap(iterator, self.prefetch_size(candidate), threads.loading)

    def raw(self) -> RawIterator:
        """Return the iterator that strategy raw trains from."""
        return RawIterator(self.records, self.pipeline, **self._order)

    def collated(self, iterator: BatchIterator) -> Iterable[Any]:
        """Return `iterator` with its batches as `collate` returns them."""
        return iterator if self.settings.step is None else CollatedBatches(iterator, self.collate)

    def collate(self, batch: Batch) -> Any:
        """Return `batch` as a user's step takes it, if there is such a step; otherwise as it is.

        The memory is that of `batch`. For a user's data set it has the structure that torch's `default_collate`
        gives its items; otherwise it is a pair of tensors.
        """
        if self.settings.step is None:
            return batch
        if isinstance(self.source, MapDataset):
            return self.source.collated(batch)
        from etl.training.backends.tensors import as_tensor, map_batch  # loads torch

        tensors = map_batch(batch, as_tensor)
        return tensors.features, tensors.labels

    def epoch_order(self) -> np.ndarray:
        """Return the indices of the selected records in the order of epoch 0, for the comparison's own strategies."""
        return Sampler(len(self.records), self.settings.batch_size, True, self.settings.seed, False).order(0)

    def user_loader(self, candidate: Candidate) -> UserLoader:
        """Return the user's loader that `candidate` names, with the selected records as its task."""
        loader = self._loader(
            str(candidate.kind.function), self.user_loader_folder(candidate), self.batches_of(candidate)
        )
        loader = replace(loader, settings=dict(candidate.settings))
        return loader if self.gets_selected(candidate) else replace(loader, records=len(self.source))

    def task(self) -> Task:
        """Return the task for a user's training step beside a strategy of this package."""
        return task_of(self._loader("", self.folder / "step", None), self.task_source, lambda: self.pipeline)

    def task_source(self) -> Any:
        """Return the selected records as tasks have them; those of a user's data set as its own items."""
        if isinstance(self.source, MapDataset):
            return self.records.of(self.source.dataset)
        return self.records

    def _loader(self, function: str, folder: Path, batches: int | None) -> UserLoader:
        settings, linked = self.settings, self.link_folder
        folder.mkdir(parents=True, exist_ok=True)
        path = None
        if not is_source_name(settings.source):
            path = str(linked if linked.exists() else Path(settings.source).absolute())
        return UserLoader(
            function=function,
            path=path,
            files=[str(each) for each in self.source_files()],
            folder=str(folder),
            batch_size=settings.batch_size,
            records=len(self.records) or None,
            cpus=self.cpus,
            seed=settings.seed,
            dtype=settings.dtype,
            batches=batches,
            rank=self.rank,
            step=settings.step,
            simulated_seconds=settings.simulated_seconds,
            waits_for_steps=settings.waits_for_steps,
            cache=settings.cache,
            heap=settings.heap,
            gc=settings.gc,
            budget_seconds=settings.budget_seconds,
        )

    def user_loader_folder(self, candidate: Candidate) -> Path:
        """Return the folder for files of a user's loader, which do not depend on its settings."""
        origins = [each.origin for each in self.candidates()]
        return self.folder / "strategies" / str(origins.index(candidate.origin))

    def restrict(self, candidate: Candidate) -> bool:
        """Begin anew in an empty folder if the records of this user loader have changed since its try.

        Return False if it cannot be given fewer records than the source has, so that nothing has changed for it.
        """
        if not self.gets_selected(candidate):
            return False
        shutil.rmtree(self.user_loader_folder(candidate), ignore_errors=True)
        return True

    @property
    def link_folder(self) -> Path:
        """Folder of links to the files of the selected records; it exists once `link_records` made it."""
        return self.folder / f"records-{len(self.records)}"

    def link_records(self) -> None:
        """Make a folder with links to the files of the selected records, if they are some files of a folder."""
        if not isinstance(self.source, ImageFolder) or not self.is_partial or self.link_folder.exists():
            return
        for file in self.source_files():
            link = self.link_folder / file.relative_to(self.source.root)
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                link.hardlink_to(file.resolve())  # loaders may refuse links that lead elsewhere
            except OSError:  # on another file system, or of another user
                link.symlink_to(file.resolve())

    def batches_of(self, candidate: Candidate) -> int | None:
        """Return how many batches of an epoch of a user's loader are looked at, on each rank; None for all.

        Some loaders cannot be given fewer records than the source has. Of these, as many batches are looked at as are
        measured of the others.
        """
        if self.settings.epoch_batches is not None:
            return self.settings.epoch_batches
        if self.gets_selected(candidate):
            return None
        of_all, recipe = self.tried[candidate.origin].epoch_batches, self._partial(candidate, self._selected_batches)
        count = recipe.batches or self._selected_batches
        return None if of_all is not None and count >= of_all else count

    def start_up_batches(self, candidate: Candidate) -> int:
        """Return the first batches of an epoch, in which `candidate` gets to its speed: those that may be in flight."""
        return max(MIN_START_UP, self._in_flight(candidate))

    def _in_flight(self, candidate: Candidate) -> int:
        if candidate.is_foreign:
            tried = self.tried.get(candidate.origin)
            return 0 if tried is None else tried.read_ahead
        return self.prefetch_size(candidate) if candidate.is_ahead else 0

    @property
    def margin_batches(self) -> int:
        """Batches of the selected records besides those that are measured: of the start-up, and ahead at the end."""
        return max(self.start_up_batches(each) + self._in_flight(each) for each in self.candidates())

    def recipe(self, candidate: Candidate) -> Recipe:
        """Return which batches of an epoch of `candidate` are measured.

        If only some records are, the epoch is left while the loader still reads ahead. Its last batches would come
        sooner than those in the middle of an epoch, since nothing is loaded beside them.
        """
        if candidate.is_foreign and (limit := self.batches_of(candidate)) is not None:
            return Recipe(limit, min(self.start_up_batches(candidate), max(1, limit - 1)))
        return self._partial(candidate, self._selected_batches) if self.is_partial else self._whole(candidate)

    def _whole(self, candidate: Candidate) -> Recipe:
        return Recipe(None, self.start_up_batches(candidate))

    def _partial(self, candidate: Candidate, selected: int) -> Recipe:
        measured, start_up = selected - self.margin_batches, self.start_up_batches(candidate)
        if measured < 1:
            return self._whole(candidate)
        # Processes that begin together deliver together.
        tried = self.tried.get(candidate.origin)
        workers = max(1, tried.workers) if tried is not None else 1
        return Recipe(start_up + -(-measured // workers) * workers, start_up)

    def epoch_batches(self, candidate: Candidate) -> int:
        """Return the batches of an epoch of the selected records, or of what a user's loader has instead."""
        if candidate.is_foreign and not self.gets_selected(candidate):
            return self.batches_of(candidate) or self.tried[candidate.origin].epoch_batches or 1
        return self._selected_batches

    def gets_selected(self, candidate: Candidate) -> bool:
        """Return False for a user's loader that cannot be given fewer records than the source has.

        A folder of images can be replaced by one with fewer files, and `source` by some of its records. A loader that
        asked for neither when it was tried may still have loaded the number of records that it was given.
        """
        origin = candidate.origin
        if not self.is_partial or isinstance(self.source, ImageFolder) or origin not in self.tried:
            return True
        return "source" in self.asked_for[origin] or self.tried[origin].has_selected_records

    @property
    def _selected_batches(self) -> int:
        return -(-len(self.records) // self.step_records)

    @property
    def step_records(self) -> int:
        """Records that all ranks together take in a step."""
        return self.settings.batch_size * self.settings.ranks

    def source_files(self) -> list[Path]:
        """Return the files that hold the selected records."""
        return source_files(self.settings.source, self.records)

    @property
    def _order(self) -> dict[str, Any]:
        return {
            "batch_size": self.settings.batch_size,
            "shuffle": True,
            "seed": self.settings.seed,
            "dtype": self._dtype,
            "padding": self.padding,
        }

    @property
    def _dtype(self) -> str | None:
        """Dtype of floating features; None if a user's step gets the items of its own data set as they are."""
        keeps = self.settings.step is not None and isinstance(self.source, MapDataset)
        return None if keeps else self.settings.dtype

    def open(self, candidate: Candidate) -> presave.Store:
        """Open the store of a presaved candidate. The store is trusted, since this comparison wrote it."""
        return presave.open_store(self.store_path(candidate.store), trusted=True)

    def files(self, candidate: Candidate) -> list[Path]:
        """Return the files that an epoch of `candidate` reads."""
        if candidate.is_presaved:
            return all_files(self.store_path(candidate.store))
        return self.source_files()

    def as_dict(self) -> Mapping[str, Any]:
        """Return JSON values from which another process makes the same workload."""
        return {
            "settings": self.settings.as_dict(),
            "folder": str(self.folder),
            "cpus": self.cpus,
            "search": self.settings.search,
        }


class CollatedBatches:
    """The batches of an iterator in another structure. It shares the position of the iterator."""

    def __init__(self, iterator: BatchIterator, collated: Callable[[Batch], Any]) -> None:
        self._iterator = iterator
        self._collated = collated

    def __len__(self) -> int:
        return len(self._iterator)

    def __iter__(self) -> Iterator[Any]:
        return map(self._collated, iter(self._iterator))

    @property
    def epoch(self) -> int:
        """Number of the epoch that comes next."""
        return self._iterator.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin with `epoch` when iterated next."""
        self._iterator.set_epoch(epoch)

    def close(self) -> None:
        """Close the iterator."""
        self._iterator.close()


class OwningIterator(PresavedIterator):
    """A presaved iterator that closes its store when it is closed."""

    def close(self) -> None:
        super().close()
        self._store.close()


def source_files(path: str, records: Subset) -> list[Path]:
    """Return the files that hold `records` of the source at `path`.

    For an image folder these are the files of the records. For other sources they are all files of the source; for a
    user's function that makes the source there are none that are known.
    """
    if is_source_name(path):
        return []
    if isinstance(records.source, ImageFolder):
        root = records.source.root
        return [root / records.source.files[index] for index in records.indices.tolist()]
    return all_files(path)


def all_files(path: str | Path) -> list[Path]:
    """Return the file at `path`, all files below the folder, or all files that match the pattern."""
    found = Path(path)
    if found.is_dir():
        return files_below(found)
    return [found] if found.exists() else sorted(Path(each) for each in glob.glob(str(path)))  # noqa: PTH207 - as the source reads it
