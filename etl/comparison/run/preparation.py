"""All that comes before strategies are measured: the profile, the first tries of user loaders, and stores."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from etl.comparison.request.answers import PipelineProfile, WrittenStore
from etl.comparison.request.candidates import Candidate, StoreKind
from etl.comparison.request.settings import Settings
from etl.comparison.request.subset import UserLoaderSource
from etl.comparison.run.measuring_processes import MeasuringProcesses
from etl.comparison.run.workload import Workload
from etl.measuring.processes import MeasurementError
from etl.measuring.ranks import cpus_of_rank
from etl.runtime.resources import affinity_of, available_cpus
from etl.sources.randomness import is_random
from etl.temporary import temporary_folder
from etl.units import counted
from presave.thread_safety import unopened

# Share of the time budget for the first tries of all user loaders together, and the records of such a try.
TRIES_SHARE, TRIED_RECORDS = 0.1, 512


@contextmanager
def opened_workload(settings: Settings) -> Iterator[tuple[Workload, list[int]]]:
    """Yield the workload of `settings`, in a temporary folder, and the CPUs that every process is bound to.

    Raises
    ------
    ValueError
        If the source cannot be opened, or this process may not use that many CPUs.
    """
    cpus = available_cpus()
    wanted = cpus if settings.threads is None else settings.threads
    if wanted > cpus:
        raise ValueError(f"--cpus {wanted}: this process may use {counted(cpus, 'CPU', 'CPUs')}")
    affinity = affinity_of(wanted)
    fewest = min(len(cpus_of_rank(affinity, rank, settings.ranks)) for rank in range(settings.ranks))
    with temporary_folder("compare") as folder:
        yield Workload(settings, folder, fewest), affinity


class Preparation:
    """Prepares to measure the strategies of a workload, and keeps account of those that fail.

    Parameters
    ----------
    progress : callable
        Called with a phase, the steps that are done, and all steps.

    Attributes
    ----------
    candidates, own : list of Candidate
        Candidates that are compared, and those that are strategies of this package.
    failed : dict
        Reasons why a candidate, or a part of it, could not be measured.
    untried : set of Candidate
        Those that failed only in trials of CPU splits, and can still run.
    lost : float
        Seconds of candidates that failed. They are not taken from the others.
    prepared : dict
        Cost of what user loaders prepare, by origin.
    randomness : str or None
        Sentence that says how records of the source differ from one reading to the next; None if they do not.
    """

    def __init__(
        self,
        workload: Workload,
        processes: MeasuringProcesses,
        progress: Callable[[str, int, int | None], None],
    ) -> None:
        self._workload = workload
        self._settings = workload.settings
        self._processes = processes
        self._progress = progress
        self.candidates = workload.candidates()
        self.own = [each for each in self.candidates if not each.is_foreign]
        self.failed: dict[Candidate, str] = {}
        self.untried: set[Candidate] = set()
        self.lost = 0.0
        self.writing: dict[StoreKind, WrittenStore] = {}
        self.prepared: dict[Candidate, WrittenStore] = {}
        # Records selected when loaders were tried, and when each has prepared its files since.
        self._tried_records = 0
        self._prepared_for: dict[Candidate, int] = {}
        self.randomness = is_random(unopened(workload.source))
        if self.randomness is not None:  # presaving would freeze random transforms
            self.failed = {each: self.randomness for each in self.candidates if each.is_presaved}
            self.raise_if_all_failed()

    def take_profile(self) -> PipelineProfile:
        """Profile the raw pipeline if predictions or stages need it; if only user loaders are compared, they cannot."""
        if not self.own or not (self._settings.what_if or self._settings.stages):
            return PipelineProfile([], {}, [], 0.0, "none")
        self._progress("profile", 0, 1)
        return self._processes.profile()

    def try_loaders(self, candidates: Iterable[Candidate]) -> None:
        """Try each user loader of `candidates` on a few records: whether it works, and how long an epoch may take.

        Those that fail are left out.
        """
        workload = self._workload
        user_loaders = [each for each in candidates if each.is_foreign]
        if not user_loaders:
            return
        workload.select(min(max(TRIED_RECORDS, workload.settings.step_records), len(workload.source)))
        self._tried_records = len(workload.records)
        workload.link_records()
        for number, candidate in enumerate(user_loaders):
            self._progress("try", number, len(user_loaders))
            origin = candidate.origin
            with self.left_out(candidate, "when it was first tried"):
                seconds = self._settings.budget_seconds * TRIES_SHARE / len(user_loaders)
                prepared, workload.tried[origin] = self._processes.try_loader(candidate, seconds)
            if candidate in self.failed:
                continue
            asked = workload.requested[origin] = set(workload.tried[origin].requested)
            if prepared is not None:
                asked |= set(prepared.requested)
                records = len(workload.records if workload.gets_selected(candidate) else workload.source)
                self.prepared[origin] = replace(prepared, records=records)
            if isinstance(workload.source, UserLoaderSource):
                self._count_records(candidate, workload.source)
        self.raise_if_all_failed()
        if isinstance(workload.source, UserLoaderSource):  # all of it has been prepared, though its size was unknown
            workload.select(len(workload.source))
            self._tried_records = len(workload.records)
            self.set_prepared_records(self._tried_records)

    def _count_records(self, candidate: Candidate, source: UserLoaderSource) -> None:
        """Take over the records of an epoch that a user's loader has reported, of a source that only it can read."""
        tried, batch_size = self._workload.tried[candidate.origin], self._settings.batch_size
        batches = self._settings.epoch_batches or tried.epoch_batches
        if batches is None:
            del self._workload.tried[candidate.origin]
            self.failed[candidate] = (
                f"its epoch did not end within {counted(tried.batches, 'batch', 'batches')} and it has no length; with "
                "--epoch-batches N an epoch is N batches"
            )
        else:
            of_rank = tried.samples if tried.has_ended else batches * batch_size
            source.count = source.count or of_rank * self._settings.ranks

    def prepare(self, only: Candidate | None = None) -> None:
        """Let the user's loaders that can run, or one of them, prepare their files for the selected records.

        They have them already if as many records were selected when they did so last.
        """
        workload = self._workload
        workload.link_records()
        for number, origin in enumerate(workload.tried if only is None else [only]):
            candidate = next(each for each in self.candidates if each.origin == origin)
            is_prepared = self._prepared_for.get(origin, self._tried_records) == len(workload.records)
            if is_prepared or not self.can_run(candidate):
                continue
            self._prepared_for[origin] = len(workload.records)
            self._progress("write", number, len(workload.tried))
            gets_selected, prepared = workload.gets_selected(origin), self.prepared.get(origin)
            if gets_selected:  # other records than in its try: it begins anew in an empty folder
                shutil.rmtree(workload.user_loader_folder(origin), ignore_errors=True)
            if gets_selected and prepared is not None:
                with self.left_out(candidate, "when it prepared its files"):
                    prepared = self._processes.prepare(origin)
            if prepared is not None:
                records = len(workload.records if gets_selected else workload.source)
                self.prepared[origin] = replace(prepared, records=records)

    def set_prepared_records(self, records: int) -> None:
        """Say of how many records the files are that user loaders have prepared."""
        self.prepared = {each: replace(one, records=records) for each, one in self.prepared.items()}

    def write_stores(self, candidates: Iterable[Candidate]) -> None:
        """Write the stores of `candidates` that can run, and have not been written."""
        wanted = dict.fromkeys(each.store for each in candidates if each.is_presaved and self.can_run(each))
        left = [each for each in wanted if each not in self.writing]
        for number, store in enumerate(left):
            self._progress("write", number, len(left))
            self.writing[store] = self._processes.write(store)

    def remove_stores(self) -> None:
        """Remove all stores, for example since other records are selected now."""
        for store in self.writing:
            shutil.rmtree(self._workload.store_path(store), ignore_errors=True)
        self.writing.clear()

    def written(self, candidates: Iterable[Candidate]) -> dict[Candidate, WrittenStore]:
        """Return the cost of the store of each candidate, or of what it prepared; without those that have neither."""
        found = {
            each: self.prepared.get(each.origin) if each.is_foreign else self.writing.get(each.store)
            for each in candidates
            if each.is_foreign or each.is_presaved
        }
        return {each: cost for each, cost in found.items() if cost is not None}

    @contextmanager
    def left_out(self, candidate: Candidate, when: str) -> Iterator[None]:
        """Leave `candidate` out of the rest of the comparison if it fails; `when` tells the reader about it."""
        started = time.monotonic()
        try:
            yield
        except MeasurementError as error:
            self.failed[candidate] = f"{error.reason}, {when}"
            self.lost += time.monotonic() - started

    def can_run(self, candidate: Candidate) -> bool:
        """Return True unless `candidate` has failed, or was refused, before it could be measured."""
        return candidate not in self.failed or candidate in self.untried

    def raise_if_all_failed(self) -> None:
        """Raise `MeasurementError` if no candidate can be measured."""
        if not any(map(self.can_run, self.candidates)):
            candidate, reason = next(iter(self.failed.items()))
            raise MeasurementError(f"no strategy could be run; {self._workload.name(candidate)}: {reason}", reason)
