"""The work of a comparison as any of its processes opens it: records of a source, and iterators over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import presave
from etl.comparison.request.candidates import Candidate, CpuSplit, StoreKind
from etl.comparison.request.conditions import Conditions
from etl.comparison.request.loader_request import UserLoader, files_below, task_of
from etl.comparison.request.settings import Settings
from etl.comparison.request.subset import Subset, UserLoaderSource
from etl.iterators import BatchIterator, PresavedIterator, RawIterator
from etl.loading.batch import Batch
from etl.loading.batch_plan import Loader
from etl.loading.padding import Padding
from etl.loading.records import ragged_after
from etl.loading.sampler import Sampler
from etl.measuring.page_cache import release_pages
from etl.measuring.ranks import Rank
from etl.sources import ImageFolder, MapDataset, open_source
from etl.sources.named import is_source_name
from etl.sources.tar import matching_files
from etl.stages.pipeline import READ, Pipeline
from etl.stages.presets import default_split, open_pipeline
from etl.strategies.task import Task
from presave.thread_safety import chosen_from, unopened


class Work:
    """Records of a source, and iterators over them.

    All records are selected until `select` is called.

    Parameters
    ----------
    folder : Path
        Folder of the stores, and of the files of user loaders.
    cpus : int
        CPUs for loading and compute together, of each rank if there are several.

    Raises
    ------
    ValueError
        If the source cannot be opened, or its pipeline does not have the stage of `settings.until`.
    """

    def __init__(self, settings: Settings, folder: Path, cpus: int) -> None:
        self.settings = settings
        self.folder = folder
        self.cpus = cpus
        self.rank = Rank(world_size=settings.ranks)
        source = self._open_source()
        self._pipelines: dict[str, Pipeline] = {}
        self.source = source
        self.pipeline = self.decoded_by(settings.decoder)
        self.records = Subset(source, len(source), settings.seed)
        self.stages = (READ, *self.pipeline.names)
        self.presave_stage = settings.until or default_split(self.pipeline)
        if self.presave_stage not in self.stages:
            raise ValueError(f"--until {self.presave_stage}: the pipeline has {', '.join(self.stages)}")
        ragged = ragged_after(getattr(chosen_from(source), "ragged", ()), self.pipeline.stages)
        self.padding = Padding() if ragged else None
        # A source computes its lengths on first use. Do it here once, not in every forked process.
        _ = getattr(source, "lengths", None) if ragged else None
        if settings.cache == "cold":
            # Opening the source may have mapped files, whose pages would stay in memory while this process runs.
            release_pages()

    def _open_source(self) -> Any:
        """Open the source. One that only user loaders can read is a `UserLoaderSource`."""
        settings = self.settings
        try:
            return open_source(settings.source, settings.split, **settings.table_options)
        except (ValueError, OSError):
            is_path = not is_source_name(settings.source) and Path(settings.source).exists()
            if not (is_path and all(Candidate.parse(each).is_foreign for each in settings.strategies)):
                raise
            return UserLoaderSource(settings.source)

    def select(self, count: int) -> None:
        """Select `count` random records, or all if the source has no more."""
        if count != len(self.records):
            self.records = Subset(self.source, count, self.settings.seed)

    @property
    def is_partial(self) -> bool:
        """True if not all records of the source are selected."""
        return len(self.records) < len(self.source)

    def source_files(self) -> list[Path]:
        """Return the files that hold the selected records."""
        return source_files(self.settings.source, self.records)

    def files(self, candidate: Candidate) -> list[Path]:
        """Return the files that an epoch of `candidate` reads."""
        if candidate.is_presaved:
            return all_files(self.store_path(candidate.store))
        return self.source_files()

    def decoded_by(self, decoder: str) -> Pipeline:
        """Return the pipeline with this decoder; a user's pipeline has its own."""
        if decoder not in self._pipelines:
            self._pipelines[decoder] = open_pipeline(self.settings.pipeline, self.source, self.settings.size, decoder)
        return self._pipelines[decoder]

    def pipeline_of(self, candidate: Candidate | StoreKind) -> Pipeline:
        """Return the pipeline of a candidate, or of what is written to a store."""
        own = candidate.decoder if isinstance(candidate, StoreKind) else candidate.setting("decoder")
        return self.pipeline if own is None else self.decoded_by(own)

    def store_path(self, store: StoreKind) -> Path:
        return self.folder / store.name

    def open(self, candidate: Candidate) -> presave.Store:
        """Open the store of a presaved candidate. The store is trusted, since this comparison wrote it."""
        return presave.open_store(self.store_path(candidate.store), trusted=True)

    def iterator(
        self, candidate: Candidate, threads: CpuSplit, watch: Callable[[Loader], Loader] | None = None
    ) -> BatchIterator:
        """Return the iterator that `candidate` trains from. All candidates shuffle with the same seed.

        If given, `watch` returns a loader that replaces the one of the iterator, for example one that traces it.
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

    def prefetch_size(self, candidate: Candidate) -> int:
        """Return the batches that `candidate` loads ahead, if it does that."""
        return int(candidate.setting("prefetch_size", self.settings.prefetch_size))

    def raw(self) -> RawIterator:
        """Return the iterator that strategy raw trains from."""
        return RawIterator(self.records, self.pipeline, **self._order)

    @property
    def _order(self) -> dict[str, Any]:
        # A user's step gets the items of its own data set as they are.
        keeps_dtype = self.settings.step is not None and isinstance(self.source, MapDataset)
        return {
            "batch_size": self.settings.batch_size,
            "shuffle": True,
            "seed": self.settings.seed,
            "dtype": None if keeps_dtype else self.settings.dtype,
            "padding": self.padding,
        }

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

    def epoch_order(self) -> NDArray[np.int64]:
        """Return the indices of the selected records in the order of epoch 0, for the comparison's own strategies."""
        return Sampler(len(self.records), self.settings.batch_size, True, self.settings.seed, False).order(0)

    def task(self) -> Task:
        """Return the task for a user's training step beside a strategy of this package."""
        return task_of(self.loader("", self.folder / "step", None), self.task_source, lambda: self.pipeline)

    def task_source(self) -> Any:
        """Return the selected records as tasks have them; those of a user's data set as its own items."""
        if isinstance(self.source, MapDataset):
            return self.records.of(self.source.dataset)
        return self.records

    @property
    def link_folder(self) -> Path:
        """Folder of links to the files of the selected records; it exists once `link_records` made it."""
        return self.folder / f"records-{len(self.records)}"

    def loader(self, function: str, folder: Path, batches: int | None) -> UserLoader:
        """Return a user's loader with the selected records as its task."""
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
            records=len(self.records) or None,
            cpus=self.cpus,
            batches=batches,
            rank=self.rank,
            conditions=Conditions.of(settings),
        )


class CollatedBatches:
    """The batches of an iterator in another structure. It shares the position of the iterator."""

    def __init__(self, iterator: BatchIterator, collated: Callable[[Batch], Any]) -> None:
        self._iterator = iterator
        self._collated = collated

    def __iter__(self) -> Iterator[Any]:
        return map(self._collated, iter(self._iterator))

    def set_epoch(self, epoch: int) -> None:
        """Begin with `epoch` when iterated next."""
        self._iterator.set_epoch(epoch)

    def close(self) -> None:
        self._iterator.close()


class OwningIterator(PresavedIterator):
    """A presaved iterator that closes its store when it is closed."""

    def close(self) -> None:
        super().close()
        self._store.close()


def source_files(path: str, records: Subset) -> list[Path]:
    """Return the absolute paths of the files that hold `records` of the source at `path`.

    For an image folder these are the files of the records. For other sources they are all files of the source; for a
    user's function that makes the source there are none that are known.
    """
    if is_source_name(path):
        return []
    if isinstance(records.source, ImageFolder):
        root = records.source.root
        return [root / records.source.files[index] for index in records.indices.tolist()]
    return [each.absolute() for each in all_files(path)]


def all_files(path: str | Path) -> list[Path]:
    """Return the file at `path`, all files below the folder, or all files that match the pattern."""
    found = Path(path)
    if found.is_dir():
        return files_below(found)
    if found.exists():
        return [found]
    return matching_files(path)  # as the source reads it
