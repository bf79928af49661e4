"""The work of a comparison as its command prepares it: what is known of each candidate, and what is asked of it."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from etl.comparison.judge.prepared_work import PreparedWork
from etl.comparison.request.answers import TriedLoader
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.loader_request import UserLoader
from etl.comparison.request.settings import Settings
from etl.comparison.request.subset import Subset
from etl.comparison.request.work import Work, source_files
from etl.measuring.sample import Recipe
from etl.sources import ImageFolder

# Batches that may be in flight at the start of an epoch, at least.
MIN_START_UP = 2
# A folder is looked at as a whole before each sample only if that takes about a second, and reading it a few.
MAX_WHOLE_FILES, MAX_WHOLE_NBYTES = 20_000, 2 << 30


class Workload(Work):
    """The work, and what preparation has found out about its candidates.

    Attributes
    ----------
    plain_compute_threads : int or None
        Compute threads of strategies that do not load ahead; None for all CPUs.
    chosen : dict
        CPU splits that were chosen in trials, by candidate.
    is_on_device : bool
        True if compute is known to run on a device other than the CPU.
    tried : dict
        First tries of user loaders, by origin.
    requested : dict
        Of "path" and "source", what they asked for, by origin.
    """

    def __init__(self, settings: Settings, folder: Path, cpus: int) -> None:
        super().__init__(settings, folder, cpus)
        self.plain_compute_threads: int | None = None
        self.chosen: dict[Candidate, CpuSplit] = {}
        self.is_on_device = False
        self.tried: dict[Candidate, TriedLoader] = {}
        self.requested: dict[Candidate, set[str]] = {}

    def prepared(self) -> PreparedWork:
        """Return what is known now, for judging the samples."""
        candidates, stage_candidates = self.candidates(), self.stage_candidates()
        every = [*candidates, *stage_candidates]
        foreign = [each for each in candidates if each.is_foreign and each.origin in self.tried]
        return PreparedWork(
            settings=self.settings,
            cpus=self.cpus,
            source_records=len(self.source),
            records=len(self.records),
            presave_stage=self.presave_stage,
            candidates=candidates,
            stage_candidates=stage_candidates,
            names={each: self.name(each) for each in every},
            threads={each: self.threads(each) for each in every},
            tried=dict(self.tried),
            part_batches={each: self.batches_of(each) for each in foreign},
            gets_all={each for each in foreign if not self.gets_selected(each)},
            unknown_files={each for each in candidates if self._may_read_unknown_files(each)},
            epoch_order=self.epoch_order().tolist(),
        )

    def candidates(self) -> list[Candidate]:
        """Return the candidates that are compared.

        A strategy that reads a store is one candidate per format, unless its settings name one.
        """
        chosen: list[Candidate] = []
        for candidate in self._given():
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
        presaved = [each.origin for each in self._given() if each.is_presaved][-1:]
        return [
            replace(each, format=self.settings.formats[0], stage=stage) for each in presaved for stage in self.stages
        ]

    def _given(self) -> list[Candidate]:
        configured = self.settings.configured
        parsed = map(Candidate.parse, self.settings.strategies)
        return [each.with_settings(configured.get(each.name, {})) for each in parsed]

    def name(self, candidate: Candidate) -> str:
        """Return the candidate's name in reports: with its format if there are several, and with any unusual stage."""
        several = candidate.is_presaved and len(self.settings.formats) > 1
        configured = self.settings.configured.get(candidate.name, {})
        several = several and "format" not in configured
        usual = configured.get("stage", self.presave_stage)
        stage = f"@{candidate.stage}" if candidate.stage not in (None, usual) else ""
        return f"{candidate.name}{f':{candidate.format}' if several else ''}{stage}"

    def threads(self, candidate: Candidate) -> CpuSplit:
        """Return the CPU split of `candidate`.

        That is the split that trials chose for it, or for the same candidate with the compared stage. If there is none,
        it is the first of `splits`.
        """
        compared = replace(candidate, stage=self.presave_stage)
        chosen = self.chosen.get(candidate) or self.chosen.get(compared)
        return chosen or self.splits(candidate)[0]

    def splits(self, candidate: Candidate) -> list[CpuSplit]:
        """Return the ways to split the CPUs between compute and loading. The first is used if none was chosen.

        The usual order is that of `CpuSplit.usual`. If compute is on a device, all but one for loading comes first. If
        compute is simulated, which takes no CPU, there is one compute thread, and all CPUs for loading come first. One
        thread loads from a source that is not thread-safe. A strategy that does not load ahead has one split: it
        computes with all CPUs, or with `plain_compute_threads` if they were faster. So has a candidate whose settings
        name its threads. How a user's loader loads is unknown: beside it, compute on the CPUs may have fewer threads.
        """
        compute = candidate.setting("compute_threads")
        if compute is not None:
            return [CpuSplit(compute, candidate.setting("loading_threads", 0))]
        if candidate.is_foreign or not candidate.is_ahead or self.prefetch_size(candidate) == 0:
            counts = [self.plain_compute_threads or self.cpus]
            if candidate.is_foreign and self.settings.simulated_seconds is None and not self.is_on_device:
                counts += self.compute_counts()
            return [CpuSplit(each, 0) for each in dict.fromkeys(counts)]
        found = CpuSplit.usual(self.cpus)
        *_, all_but_one_load, all_shared = found
        if self.is_on_device:
            found.insert(0, all_but_one_load)
        if self.settings.simulated_seconds is not None:
            found = [CpuSplit(1, each.loading) for each in (all_shared, *found)]
        if self.has_one_reader(candidate):
            found = [CpuSplit(each.compute, 1) for each in found]
        return list(dict.fromkeys(found))

    def compute_counts(self) -> list[int]:
        """Return the numbers of threads with which compute alone might be fastest, all CPUs first."""
        return list(dict.fromkeys((self.cpus, max(1, self.cpus // 2), 1)))

    def has_one_reader(self, candidate: Candidate) -> bool:
        """Return True if threads of `candidate` would read a source that only one thread may read at a time."""
        reads_source = not (candidate.is_presaved or candidate.is_foreign or candidate.worker_processes)
        return reads_source and not self.records.thread_safe

    def user_loader(self, candidate: Candidate) -> UserLoader:
        """Return the user's loader that `candidate` names, with the selected records as its task."""
        loader = self.loader(
            str(candidate.kind.function), self.user_loader_folder(candidate), self.batches_of(candidate)
        )
        loader = replace(loader, settings=dict(candidate.settings))
        if self._may_read_whole_folder(candidate):
            loader = replace(loader, files=self._whole_folder or loader.files)
        return loader if self.gets_selected(candidate) else replace(loader, records=len(self.source))

    def _may_read_whole_folder(self, candidate: Candidate) -> bool:
        """Return True for a user's loader that asked for nothing that has only the selected images of a folder.

        Of other sources, all files count as read in any case.
        """
        if not (self.is_partial and isinstance(self.source, ImageFolder) and candidate.origin in self.tried):
            return False
        return not {"path", "source"} & self.requested[candidate.origin]

    def _may_read_unknown_files(self, candidate: Candidate) -> bool:
        """Return True if `candidate` may read files that no sample puts into the cache state, or looks at."""
        if self.settings.has_unknown_files:
            return not candidate.is_presaved
        return self._may_read_whole_folder(candidate) and not self._whole_folder

    @functools.cached_property
    def _whole_folder(self) -> list[str]:
        """All files of a folder of images; empty if they are too many, or too large, to be looked at in each sample."""
        if len(self.source) > MAX_WHOLE_FILES:
            return []
        files = source_files(self.settings.source, Subset(self.source, len(self.source), self.settings.seed))
        return list(map(str, files)) if sum(each.stat().st_size for each in files) <= MAX_WHOLE_NBYTES else []

    def user_loader_folder(self, candidate: Candidate) -> Path:
        """Return the folder for files of a user's loader, which do not depend on its settings."""
        origins = [each.origin for each in self.candidates()]
        return self.folder / "strategies" / str(origins.index(candidate.origin))

    def link_records(self) -> None:
        """Make a folder with links to the files of the selected records, if they are some files of a folder.

        Nothing is made unless a user's code can see it, because a link changes the time of change of its file.
        """
        has_users_code = self.settings.step is not None or any(each.is_foreign for each in self.candidates())
        is_part_of_folder = isinstance(self.source, ImageFolder) and self.is_partial
        if not has_users_code or not is_part_of_folder or self.link_folder.exists():
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
        of_all, recipe = self.tried[candidate.origin].epoch_batches, self._of_selected(candidate)
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
        return self._of_selected(candidate)

    def _of_selected(self, candidate: Candidate) -> Recipe:
        measured, start_up = self._selected_batches - self.margin_batches, self.start_up_batches(candidate)
        if not self.is_partial or measured < 1:
            return Recipe(None, start_up)
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
        if not self.is_partial or origin not in self.tried:
            return True
        replaced = {"path", "source"} if isinstance(self.source, ImageFolder) else {"source"}
        return bool(replaced & self.requested[origin]) or self.tried[origin].has_selected_records

    @property
    def _selected_batches(self) -> int:
        return -(-len(self.records) // self.settings.step_records)
