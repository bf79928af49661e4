"""Measurements in fresh processes: the client of the server in `tasks.py`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import etl
from etl.comparison.samples import CheckedEpoch, LoadingSample, Profile, Sample, Spans, Trials, WrittenStore
from etl.comparison.settings import Candidate, Threads
from etl.comparison.workload import Workload
from etl.measuring.layout import draw_environment, draw_hash_seed
from etl.measuring.processes import FreshServers, MeasurementError, Server
from etl.measuring.values import JsonValues, to_json

if TYPE_CHECKING:
    from typing_extensions import Self

ANSWER_SECONDS = 900.0
# `python -m` would look for modules in the working folder first, which may be a folder of untrusted data.
# The folder of this package is appended to the path, so that the package is found even if it is not installed.
START = """
import sys
sys.path[:] = [path for path in sys.path if path]
sys.path.append(sys.argv[1])
from etl.measuring.server import main
main()
"""
Answer = TypeVar("Answer", bound=JsonValues)


class InputError(ValueError):
    """The input of the comparison is wrong: the source, a record, the model or a setting."""


class Processes:
    """A context manager around a server that forks a fresh process for each measurement.

    Every measurement raises `InputError` if the input is wrong, and `MeasurementError` if it fails otherwise. After
    either error, the next measurement comes from a new server.

    Parameters
    ----------
    workload : Workload
        The work to measure. Its records and CPU splits may change between measurements.
    affinity : collection of int
        CPUs that every process is bound to.
    """

    def __init__(self, workload: Workload, affinity: Collection[int]) -> None:
        self._workload = workload
        self._affinity = sorted(affinity)
        self._servers = FreshServers(self._start)

    def renew(self) -> None:
        """Start a new server, with a newly randomized memory layout."""
        with _as_input_error():
            self._servers.renew()

    def profile(self) -> Profile:
        """Return the profile of the raw pipeline."""
        return self._ask("profile", Profile)

    def write(self, format: str, stage: str, jobs: int) -> WrittenStore:
        """Write a store, and return its cost.

        Parameters
        ----------
        format : str
            Format of the store.
        stage : str
            Stage after which records are presaved.
        jobs : int
            Worker processes that write.
        """
        return self._ask("write", WrittenStore, format=format, stage=stage, jobs=jobs)

    def try_splits(self, candidate: Candidate, seconds: float) -> dict[Threads, list[float]]:
        """Return the seconds per batch of short trials with each CPU split, which take about `seconds` in all."""
        tried = self._ask("try_splits", Trials, candidate, seconds=seconds)
        return {each.threads: each.seconds_per_batch for each in tried.trials}

    def check(self, candidate: Candidate, compute_threads: int, trains: bool) -> CheckedEpoch:
        """Return digests of an epoch of `candidate`, and the loss of a few training steps on it.

        Parameters
        ----------
        candidate : Candidate
            The way to load.
        compute_threads : int
            Threads of compute, the same for all candidates.
        trains : bool
            Train on the first batches.
        """
        return self._ask("check", CheckedEpoch, candidate, compute_threads=compute_threads, trains=trains)

    def measure(self, candidate: Candidate, with_etl_alone: bool) -> Sample:
        """Return one sample of all metrics, but of loading alone only if `with_etl_alone`."""
        return self._ask("measure", Sample, candidate, with_etl_alone=with_etl_alone)

    def load(self, candidate: Candidate) -> LoadingSample:
        """Return one sample of loading alone."""
        return self._ask("load", LoadingSample, candidate)

    def timeline(self, candidate: Candidate) -> Spans:
        """Return the spans of waiting, compute and loading in the first batches of an epoch of `candidate`."""
        return self._ask("timeline", Spans, candidate)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.close()

    def _ask(self, task: str, kind: type[Answer], candidate: Candidate | None = None, **arguments: Any) -> Answer:
        request = {
            "task": task,
            "candidate": to_json(candidate),
            "arguments": arguments,
            "state": self._workload.state().to_json(),
            "affinity": self._affinity,
        }
        with _as_input_error():
            answer = self._servers.sample(task if candidate is None else self._workload.name(candidate), request)
        return kind.from_json(answer)

    def _start(self) -> Server:
        return Server(
            "the comparison",
            [sys.executable, "-c", START, str(Path(etl.__file__).parents[1]), "etl.comparison.tasks:prepare"],
            dict(self._workload.as_dict()),
            timeout=ANSWER_SECONDS,
            hash_seed=draw_hash_seed(),
            # For the server's own child processes; Python 3.11 and later obey it.
            environment={"PYTHONSAFEPATH": "1", **draw_environment()},
        )


@contextmanager
def _as_input_error() -> Iterator[None]:
    """Turn a `MeasurementError` that the input caused into an `InputError`."""
    try:
        yield
    except MeasurementError as error:
        if error.is_input:
            raise InputError(error.reason) from error
        raise
