"""Measurements in fresh processes: the client of the servers of `worker`."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import etl
from etl.comparison.request.answers import (
    AuditedSample,
    CheckedEpoch,
    FirstTry,
    LoadingSample,
    PipelineProfile,
    TriedLoader,
    TuningSample,
    WrittenStore,
)
from etl.comparison.request.candidates import Candidate, StoreKind
from etl.comparison.request.measuring_request import Action, MeasuringRequest
from etl.comparison.run.joined_ranks import join_checks, join_loads
from etl.comparison.run.workload import Workload
from etl.images.settings import pillow_settings
from etl.measuring.fleet import Fleet
from etl.measuring.joined_samples import RanksDifferError, join_samples
from etl.measuring.layout import draw_environment, draw_hash_seed
from etl.measuring.processes import ONE_THREAD, MeasurementError, NoAnswerError, Server
from etl.measuring.ranks import Rank, cpus_of_rank, create_meetings
from etl.measuring.sample import Recipe, Spans
from etl.measuring.server import Request
from etl.measuring.values import JsonValues
from etl.runtime.device_memory_policy import variables_of
from etl.runtime.resources import available_nbytes
from etl.training.compute import INFERENCE

# An answer that concerns no user's loader may take this long, or as long as one that does if that is more.
ANSWER_SECONDS = 900.0
# The common server may take this long to import everything but the modules of user loaders.
IMPORT_SECONDS = 120.0
# An answer of a user's loader may take this long, and at least so many times the budget.
MIN_FOREIGN_SECONDS, FOREIGN_BUDGETS = 60.0, 2.0
# Servers that start at the same time, the least memory of one, and the share of the memory that all may take.
STARTED_AT_ONCE, SERVER_NBYTES, MEMORY_SHARE = 2, 400 << 20, 0.5
# The path of a socket has at most 107 bytes, of which multiprocessing appends 32: "/pymp-........./listener-.........".
MAX_TEMPORARY_PATH = 75
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
# `python -m` would look for modules in the working folder first, which may be a folder of untrusted data.
# The folder of this package is appended to the path, so that the package is found even if it is not installed.
START = """
import sys
sys.path[:] = [path for path in sys.path if path]
sys.path.append(sys.argv[1])
from etl.measuring.server import serve
serve()
"""
Result = TypeVar("Result", bound=JsonValues)


class InputError(ValueError):
    """The input of the comparison is wrong: the source, a record, the model or a setting."""


class MeasuringProcesses:
    """A context manager around servers, which fork a fresh process for each measurement.

    One server measures everything, except for user loaders that run in another Python, that leave threads behind
    when they are imported, or that have not been tried yet: each of these has a server of its own.

    Every measurement raises `InputError` if the input is wrong, and `MeasurementError` if it fails otherwise. After
    either error, the next measurement comes from a new server. An error in a user's loader is always a
    `MeasurementError`, since the other strategies can still be measured.

    Parameters
    ----------
    workload : Workload
        The work to measure. Its records and CPU splits may change between measurements.

    Notes
    -----
    If there are several ranks, each has servers of its own. What concerns all ranks is done by the first: profiling,
    preparing, trying. All load and compute at the same time when an epoch is checked, measured or traced.
    """

    def __init__(self, workload: Workload, affinity: Collection[int]) -> None:
        self._workload = workload
        self._affinity = sorted(affinity)
        self._numbers = itertools.count()
        self._common: list[Candidate] = []
        self._is_common_tried = True
        self._ranks = workload.rank.world_size
        self._servers = self._common_servers()
        self._ready: deque[Fleet] = deque()
        self._alone: dict[Candidate, Fleet] = {}

    def start_ahead(self, count: int) -> None:
        """Start servers for `count` rounds, two at a time, and wait until they are ready.

        There are fewer if they would take more than `MEMORY_SHARE` of the memory that is left.
        """
        if not self._uses_common:
            return
        needed = max(SERVER_NBYTES * self._ranks, self._servers.nbytes)  # with the records of a source in memory
        room = int(MEMORY_SHARE * available_nbytes() / needed)
        starting: deque[Fleet] = deque()
        at_once = STARTED_AT_ONCE if self._ranks == 1 else 1
        with _as_input_error():
            try:
                for _ in range(min(count, room)):
                    self._ready.append(self._common_servers())
                    starting.append(self._ready[-1])
                    starting[-1].begin()
                    if len(starting) == at_once:
                        starting.popleft().wait_until_ready()
                for each in starting:
                    each.wait_until_ready()
            except MeasurementError:
                self._renew_common()  # which knows what to do, or why it is impossible

    def renew(self) -> None:
        """Take another server, with a newly randomized memory layout, of those that were started ahead if there is one.

        The servers of loaders that are measured alone start when they are asked.
        """
        for each in self._alone.values():
            each.end_servers()
        if self._ready:
            self._servers.close()
            self._servers = self._ready.popleft()
        elif self._uses_common:
            with _as_input_error():
                self._renew_common()

    @property
    def _uses_common(self) -> bool:
        return any(each.origin not in self._alone for each in self._workload.candidates())

    def _common_servers(self) -> Fleet:
        return Fleet(self._start, self._ranks)

    def _renew_common(self) -> None:
        """Start the common server anew, with the modules of all loaders that it measures.

        Modules of loaders that could be imported one by one may crash together. Then each has its own server again.
        """
        while self._ready:
            self._ready.pop().close()
        try:
            self._start_common()
        except MeasurementError:
            if not self._common:
                raise
            self._alone |= {each: self._own_server(each) for each in self._common}
            self._common.clear()
            self._start_common()
        self._is_common_tried = True

    def _start_common(self) -> None:
        self._servers.close()
        self._servers = self._common_servers()
        self._servers.wait_until_ready()

    def profile(self) -> PipelineProfile:
        """Return the profile of the raw pipeline."""
        workload = self._workload
        kinds = [
            *map(Candidate, ("async-raw", "process-raw")),
            *(each for each in workload.candidates() if each.settings),
        ]
        splits = [split for each in kinds for split in workload.splits(each)]
        counts = [workload.cpus, *(each.compute for each in splits)]
        splits = [each for each in splits if each.loading]
        return self._ask(PipelineProfile, "profile", splits=[*dict.fromkeys(splits)], counts=[*dict.fromkeys(counts)])

    def write(self, store: StoreKind) -> WrittenStore:
        """Write a store in a worker process for each CPU, and return its cost."""
        return self._ask(WrittenStore, "write", store=store)

    def prepare(self, candidate: Candidate) -> WrittenStore | None:
        """Let a user's loader prepare its files again, and return their cost."""
        return self._ask(FirstTry, "first_try", candidate).prepared

    def try_loader(self, candidate: Candidate, seconds: float) -> tuple[WrittenStore | None, TriedLoader]:
        """Let a user's loader prepare its files, if it does that; then load with it for `seconds`, and compute.

        From then on it is measured in processes of the common server, if that can still fork with its module imported.
        """
        candidate = candidate.origin
        servers = self._alone[candidate] = self._own_server(candidate)
        first = self._ask(FirstTry, "first_try", candidate, seconds=seconds)
        tried = first.tried or self._ask(TriedLoader, "try", candidate, seconds=seconds)
        if servers.can_fork and self._interpreter(candidate) is None:
            self._common.append(candidate)
            self._servers.close()
            self._servers = self._alone.pop(candidate)
            self._is_common_tried = len(self._common) == 1  # otherwise the next one imports this loader, too
        return first.prepared, tried

    def check(
        self, candidate: Candidate, compute_threads: int, trains: bool, again: str = "", counts: Sequence[int] = ()
    ) -> CheckedEpoch:
        """Return digests of an epoch of `candidate`, and the loss of a few training steps on it."""
        arrays_file = str(self._workload.folder / f"check-{next(self._numbers)}")
        return self._ask_ranks(
            CheckedEpoch,
            "check",
            candidate,
            join_checks,
            compute_threads=compute_threads,
            trains=trains,
            arrays_file=arrays_file,
            again=again if candidate.is_foreign else "",
            counts=list(counts),
        )

    def measure(self, candidate: Candidate, recipe: Recipe) -> AuditedSample:
        """Return one sample of all metrics that `recipe` names."""
        settings = self._workload.settings
        # Ranks wait for each other in every step of training; of a user's step that is unknown.
        steps_wait = None if settings.step is not None else settings.compute != INFERENCE
        join = partial(join_samples, are_together=steps_wait)
        return self._ask_ranks(AuditedSample, "measure", candidate, join, recipe=recipe)

    def tune(self, candidate: Candidate, batches: int) -> TuningSample:
        """Return one sample of training on so many batches of an epoch, or on all if it has fewer."""
        return self._ask(TuningSample, "tune", candidate, recipe=self._tuning_recipe(candidate, batches))

    def tune_in_turns(
        self, turns: Sequence[tuple[Candidate, int]], batches: int, limit_seconds: float | None
    ) -> Generator[TuningSample, None, None]:
        """Yield one sample for each turn, in their order, all from one process.

        The loader of one is closed, and its processes have ended, before that of the next is made: an idle loader may
        go on loading, and its workers wait for CPUs that are not theirs. All candidates are one strategy with other
        settings. An error is that of the turn whose sample would be next, and ends the process.

        Parameters
        ----------
        turns : sequence of (Candidate, int)
            What takes each turn, and the epochs that are timed.
        batches : int
            As for `tune`.
        limit_seconds : float or None
            Time after which a sample is given up; None for that of the kind of loader.
        """
        rank, first = self._rank(0), turns[0][0]
        recipes = [replace(self._tuning_recipe(each, batches), epochs=epochs) for each, epochs in turns]
        begin, *others = [
            self._request("tune", each, rank.cpus, rank, {"recipe": recipe})
            for (each, _), recipe in zip(turns, recipes, strict=True)
        ]
        seconds = self._seconds(first) if limit_seconds is None else limit_seconds
        with (
            self._errors_of(first, limit_seconds),
            self._servers_of(first).session(begin, self._name("tune", first), seconds) as (answer, ask),
        ):
            yield TuningSample.from_json(answer)
            for request in others:
                yield TuningSample.from_json(ask(request))

    def _tuning_recipe(self, candidate: Candidate, batches: int) -> Recipe:
        """Return the recipe for some batches of an epoch, whose first ones come from all workers at the same time."""
        in_start_up = max(self._workload.start_up_batches(candidate), candidate.setting("num_workers") or 0)
        taken: int | None = batches
        if batches >= self._workload.epoch_batches(candidate):
            taken = self._workload.batches_of(candidate) if candidate.is_foreign else None
        return Recipe(taken, min(in_start_up, max(1, batches - 1)))

    def load(self, candidate: Candidate) -> LoadingSample:
        """Return one sample of loading alone."""
        return self._ask_ranks(LoadingSample, "load", candidate, join_loads)

    def timeline(self, candidate: Candidate) -> Spans:
        """Return the spans of waiting, compute and loading in the first batches of an epoch, on the first rank."""
        return self._ask_ranks(Spans, "timeline", candidate, lambda spans: spans[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:  # all of them, also if one is interrupted
            for each in (self._servers, *self._ready, *self._alone.values()):
                closing.callback(each.close)

    def _ask(self, kind: type[Result], action: Action, candidate: Candidate | None = None, **asked: Any) -> Result:
        """Return the answer of the first rank alone, which prepares files on the CPUs of all.

        The request has the fields `asked`, too.
        """
        rank, name = self._rank(0), self._name(action, candidate)
        affinity = self._affinity if action in ("write", "first_try") else rank.cpus
        request = self._request(action, candidate, affinity, rank, asked)
        with self._errors_of(candidate):
            return kind.from_json(self._servers_of(candidate).sample(name, request, self._seconds(candidate)))

    def _ask_ranks(
        self,
        kind: type[Result],
        action: Action,
        candidate: Candidate,
        join: Callable[[Sequence[Result]], Result],
        **asked: Any,
    ) -> Result:
        """Return the answers of all ranks, which do the same at the same time, as one."""
        if self._ranks == 1:
            return self._ask(kind, action, candidate, **asked)
        meeting = self._workload.folder / f"meeting-{next(self._numbers)}"
        create_meetings(meeting, self._ranks)
        ranks = [self._rank(number, str(meeting)) for number in range(self._ranks)]
        requests = [self._request(action, candidate, each.cpus, each, asked) for each in ranks]
        name = self._name(action, candidate)
        with self._errors_of(candidate):
            answers = self._servers_of(candidate).sample_all(name, requests, self._seconds(candidate))
        try:
            return join([kind.from_json(each) for each in answers])
        except RanksDifferError as error:
            raise MeasurementError(f"{name} cannot be measured: {error}", reason=str(error)) from error

    def _request(
        self, action: Action, candidate: Candidate | None, affinity: list[int], rank: Rank, asked: Mapping[str, Any]
    ) -> Request:
        """Return the request to one rank."""
        workload = self._workload
        loader = None
        if candidate is not None and candidate.is_foreign:
            loader = replace(workload.user_loader(candidate), rank=rank)
        request = MeasuringRequest(
            action=action,
            records=len(workload.records),
            affinity=affinity,
            rank=rank,
            candidate=candidate,
            threads=None if candidate is None else workload.threads(candidate),
            loader=loader,
            **asked,
        )
        if request.arrays_file:
            request = replace(request, arrays_file=f"{request.arrays_file}-{rank.number}.npz")
        return request.to_json()

    def _servers_of(self, candidate: Candidate | None) -> Fleet:
        """Return the servers that measure `candidate`, which know all loaders that have been tried."""
        origin = None if candidate is None else candidate.origin
        if origin in self._alone:
            return self._alone[origin]
        if not self._is_common_tried:
            with _as_input_error():
                self._renew_common()
        return self._servers if origin is None else self._alone.get(origin, self._servers)

    def _name(self, action: str, candidate: Candidate | None) -> str:
        return action if candidate is None else self._workload.name(candidate)

    def _seconds(self, candidate: Candidate | None) -> float:
        """Return the seconds that an answer may take."""
        least = ANSWER_SECONDS if candidate is None or not candidate.is_foreign else 0.0
        return max(least, self._user_loader_seconds)

    def _rank(self, number: int, meeting: str | None = None) -> Rank:
        return Rank(number, self._ranks, meeting, cpus_of_rank(self._affinity, number, self._ranks))

    @contextmanager
    def _errors_of(self, candidate: Candidate | None, limit_seconds: float | None = None) -> Iterator[None]:
        """Raise errors of the input as such; of a user's loader, what is wrong is never the input.

        Without an answer in time, say what to do, unless there is a limit that does not depend on the budget.
        """
        try:
            with nullcontext() if candidate is not None and candidate.is_foreign else _as_input_error():
                yield
        except NoAnswerError as error:
            if limit_seconds is not None:
                raise
            more = "; a higher --budget allows more time"
            raise NoAnswerError(f"{error}{more}", error.text, reason=f"{error.reason}{more}") from error

    @property
    def _user_loader_seconds(self) -> float:
        """Seconds that an answer of a user's loader may take."""
        settings = self._workload.settings
        return max(MIN_FOREIGN_SECONDS, FOREIGN_BUDGETS * max(settings.budget_seconds, settings.tune_seconds or 0.0))

    def _own_server(self, candidate: Candidate) -> Fleet:
        return Fleet(lambda rank: self._start_alone(candidate, rank), self._ranks)

    def _interpreter(self, candidate: Candidate) -> str | None:
        return self._workload.settings.pythons.get(self._workload.name(candidate))

    def _start(self, _: int) -> Server:
        # A user's module may wait forever when it is imported.
        timeout = IMPORT_SECONDS + self._user_loader_seconds if self._common else self._seconds(None)
        return self._start_here(self._common, timeout)

    def _start_here(self, loaders: Sequence[Candidate], timeout: float) -> Server:
        """Start a server of this Python that imports the modules of `loaders`."""
        functions = [str(each.kind.function) for each in loaders]
        request = {
            "settings": self._workload.settings.to_json(),
            "folder": str(self._workload.folder),
            "cpus": self._workload.cpus,
            "functions": functions,
            "pillow": pillow_settings(),
        }
        return self._start_server(sys.executable, "etl.comparison.worker.main:prepare", request, {}, timeout)

    def _start_alone(self, candidate: Candidate, rank: int) -> Server:
        """Start the server of `rank` for a user's loader that is measured alone."""
        interpreter = self._interpreter(candidate)
        if interpreter is None:
            return self._start_here([candidate], self._user_loader_seconds)
        # No policy sets its threads: the package for this may be missing there.
        threads = dict.fromkeys(ONE_THREAD, str(self._workload.cpus))
        request = {
            "function": str(candidate.kind.function),
            "search": own_folders(self._workload.settings.search),
            "pillow": pillow_settings(),
            "affinity": self._rank(rank).cpus,
            "may_fork": False,
        }
        prepare = "etl.comparison.worker.user_loader:prepare"
        return self._start_server(interpreter, prepare, request, threads, self._user_loader_seconds)

    def _start_server(
        self, interpreter: str, prepare: str, request: Request, environment: Mapping[str, str], timeout: float
    ) -> Server:
        """Start a server that `prepare`, a "module:function", prepares; an answer may take `timeout` seconds."""
        return Server(
            "the comparison",
            [interpreter, "-c", START, str(Path(etl.__file__).parents[1]), prepare],
            request,
            timeout=timeout,
            hash_seed=draw_hash_seed(),
            # PYTHONSAFEPATH is for the server's own child processes; Python 3.11 and later obey it.
            environment={
                "PYTHONSAFEPATH": "1",
                **variables_of(self._workload.settings.device_memory),
                **self._temporary_folder(),
                **draw_environment(),
                **environment,
            },
        )

    def _temporary_folder(self) -> dict[str, str]:
        """Return the environment variable for a folder in which killed processes may leave their files.

        It is removed with the folder of the comparison. If sockets in it had too long a path, there is none.
        """
        folder = self._workload.folder / "tmp"
        if len(str(folder)) > MAX_TEMPORARY_PATH:
            return {}
        folder.mkdir(exist_ok=True)
        return {"TMPDIR": str(folder)}


def own_folders(search: Iterable[str]) -> list[str]:
    """Return those folders of `search` that hold no packages of this Python.

    Another Python must not find packages that were built for this one.
    """
    return [
        each
        for each in search
        if not PACKAGE_FOLDERS.intersection(Path(each).parts)
        and not any(Path(each).is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))
    ]


@contextmanager
def _as_input_error() -> Iterator[None]:
    """Turn a `MeasurementError` that the input caused into an `InputError`."""
    try:
        yield
    except MeasurementError as error:
        if error.is_input:
            raise InputError(error.reason) from error
        raise
