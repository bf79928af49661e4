"""Pairs: this project's loader and a peer's take turns, each in fresh processes."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.journal import Kind
from benchmarks.measuring.fleet import Fleet
from benchmarks.measuring.layout import draw_environment
from benchmarks.measuring.processes import ONE_THREAD, MeasurementError, Server
from benchmarks.measuring.statistics import Interval, ratio_interval
from benchmarks.measuring.values import JsonValues
from benchmarks.peers.rows import CROPS, SLOWED, SLOWER, Row
from benchmarks.peers.worker import LoadedEpochs, LoaderRequest
from benchmarks.servers import ISOLATED_MAIN, ROOT

# At least as long as half a second is timed; a longer epoch is timed once.
SECONDS = 0.5
TIMEOUT_SECONDS = 300.0
# Task, row, `DOCUMENTED`, `TUNED` or one setting of the row, and number of the pair.
Key = tuple[str, str, str, int]
DOCUMENTED, TUNED = "documented", "tuned"
# So many pairs try each value of a setting. The best one is taken if its rate is higher by this share.
TRIALS, GAIN = 2, 0.03
# Arguments of a loader, besides those that all loaders have.
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class PairResult(JsonValues):
    """Two loaders in turn.

    Attributes
    ----------
    base, other : LoadedEpochs or None
        This project's loader, or the row as documented if one of its settings is tried, and the other one; None if
        either has failed.
    arguments : mapping
        What the other one was called with, besides what all loaders are called with.
    distance : float or None
        Largest difference between the pixels of both, in standard deviations of pixels; None if it was not looked at.
    alternatives : mapping of str to list
        Values of the settings of the other one that are not its defaults, if it was looked for them.
    failure : str
        Why there is no result.
    """

    base: LoadedEpochs | None
    other: LoadedEpochs | None
    arguments: Arguments = field(default_factory=dict)
    distance: float | None = None
    alternatives: Mapping[str, list[Any]] = field(default_factory=dict)
    failure: str = ""

    @property
    def ratio(self) -> float:
        """Rate of the other one over that of the base."""
        assert self.base is not None  # noqa: S101 - only complete pairs are asked
        assert self.other is not None  # noqa: S101
        return statistics.fmean(self.base.epochs) / statistics.fmean(self.other.epochs)


PAIRS: Kind[Key, PairResult] = Kind("peers", tuple[str, str, str, int], PairResult)


def ratio_of(pairs: Iterable[PairResult]) -> Interval:
    """Return the rate of the other loader over that of the base."""
    return ratio_interval([each.ratio for each in pairs if not each.failure])


def tuned_arguments(results: Mapping[Key, PairResult], task: str, name: str) -> Arguments:
    """Return the setting of a row that was fastest when all were tried; nothing if none was faster by `GAIN`."""
    trials: dict[str, list[PairResult]] = {}
    for key, each in results.items():
        if key[:2] == (task, name) and key[2] not in (DOCUMENTED, TUNED) and not each.failure:
            trials.setdefault(key[2], []).append(each)
    found = {arm: ratio_of(each).estimate for arm, each in trials.items() if len(each) == TRIALS}
    best = max(found, key=found.__getitem__, default=None)
    return trials[best][0].arguments if best is not None and found[best] > 1 + GAIN else {}


@dataclass(frozen=True)
class Loader:
    """A row with the interpreter that has its library, and the arguments that are tried."""

    row: Row
    python: str
    arguments: Arguments


@dataclass(frozen=True)
class Work:
    """The photographs that all loaders load.

    Attributes
    ----------
    photographs : Path
        The folder of photographs, a folder for each.
    prepared : Path
        Where loaders keep their own files, by task and loader.
    """

    photographs: Path
    prepared: Path
    records: int
    batch_size: int
    workers: int

    def take(self, base: Loader, other: Loader, number: int) -> PairResult:
        """Measure a pair; the base begins in every other one. A failure of the other one is the result of the pair.

        Raises `MeasurementError` if the base fails.
        """
        is_first = number == 0
        loaders, asks, taken = (base, other), {}, {}
        arm = 0
        try:
            with ExitStack() as stack:
                for arm in (0, 1, *((0, 1) if number % 2 == 0 else (1, 0))):
                    if arm not in asks:
                        asks[arm] = stack.enter_context(self._open(loaders[arm]))
                        continue
                    request = LoaderRequest(self._arguments(loaders[arm]), self.records, SECONDS, is_first)
                    taken[arm] = LoadedEpochs.from_json(asks[arm][1](request.to_json()))
        except MeasurementError as error:
            if arm == 0:
                raise
            return PairResult(None, None, other.arguments, failure=error.reason)
        slower = 1 + SLOWER if other.row.name == SLOWED else 1.0
        return PairResult(
            taken[0].rounded(),
            taken[1].rounded(slower),
            other.arguments,
            _distance(taken[0], taken[1]) if is_first and other.row.task != CROPS else None,
            asks[1][0]["alternatives"] if is_first else {},
        )

    def _arguments(self, loader: Loader) -> dict[str, Any]:
        return {
            "path": str(self.photographs),
            "folder": str(self._folder(loader.row)),
            "batch_size": self.batch_size,
            "workers": self.workers,
            **loader.arguments,
        }

    def _folder(self, row: Row) -> Path:
        return self.prepared / f"{row.peer}-{row.loader}"

    @contextmanager
    def _open(self, loader: Loader) -> Iterator[tuple[Any, Any]]:
        """Start the process of a loader, and write what it keeps if that is not there."""
        with Fleet(lambda _: self._start(loader)) as fleet:
            fleet.begin()
            with fleet.session({"loader": loader.row.loader, "workers": self.workers}) as session:
                folder = self._folder(loader.row)
                if session[0]["prepares"] and not folder.exists():
                    unfinished = folder.with_name(f"{folder.name}.unfinished")
                    shutil.rmtree(unfinished, ignore_errors=True)
                    unfinished.mkdir(parents=True)
                    arguments = {**self._arguments(loader), "folder": str(unfinished)}
                    session[1](LoaderRequest(arguments, 0, 0.0, False).to_json())
                    unfinished.rename(folder)
                yield session

    @staticmethod
    def _start(loader: Loader) -> Server:
        command = [loader.python, str(ISOLATED_MAIN), "measuring.server:serve", "benchmarks.peers.worker:prepare"]
        # The libraries choose their threads, as in a script.
        threads = dict.fromkeys(ONE_THREAD)
        environment = {**draw_environment(), **threads, "PYTHONPATH": str(ROOT)}
        request = {"peer": loader.row.peer, "may_fork": False}
        return Server(loader.row.name, command, request, timeout=TIMEOUT_SECONDS, environment=environment)


def _distance(base: LoadedEpochs, other: LoadedEpochs) -> float:
    return max(float(np.abs(np.subtract(base.watched[label], other.watched[label])).max()) for label in base.watched)
