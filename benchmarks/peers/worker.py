"""The process that measures one loader of a peer, in the interpreter of that peer.

Between two requests no loader exists: each is opened, warmed, timed in literal `for` loops, and closed.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.measuring.arrays import views_in
from benchmarks.measuring.process_tree import PeakMemory, cpu_seconds
from benchmarks.measuring.server import Answer, OpenSession, Request, Turn
from benchmarks.measuring.values import JsonValues

SIZE = 224
# Photographs whose images are compared between loaders, and the distance of the pixels that are.
WATCHED, STEP = 16, 32


@dataclass(frozen=True)
class LoaderRequest(JsonValues):
    """A loader to measure, or whose files are to be written if `records` is 0.

    Attributes
    ----------
    arguments : mapping of str to JSON values
        What it is called with, as far as it takes it.
    records : int
        Photographs of an epoch.
    seconds : float
        Epochs are timed until they take this long together.
    is_checked : bool
        Look at all images in an epoch before.
    """

    arguments: Mapping[str, Any]
    records: int
    seconds: float
    is_checked: bool


@dataclass(frozen=True)
class LoadedEpochs(JsonValues):
    """Epochs that were timed.

    Attributes
    ----------
    epochs : list of float
        Seconds of each timed epoch.
    cpu_seconds : float
        CPU time of these epochs, of the process and its workers.
    peak_nbytes : int
        Memory at the peak of the checked epoch; 0 if there was none.
    watched : mapping of str to list of float
        Some pixels of the first photographs, by label; empty without a checked epoch.
    """

    epochs: list[float]
    cpu_seconds: float
    peak_nbytes: int = 0
    watched: Mapping[str, list[float]] = field(default_factory=dict)

    def rounded(self, slower: float = 1.0) -> LoadedEpochs:
        """Return it without pixels and digits that mean nothing, and its epochs longer by the factor `slower`."""
        epochs = [round(each * slower, 5) for each in self.epochs]
        return LoadedEpochs(epochs, round(self.cpu_seconds, 3), self.peak_nbytes)


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import the file of the peer."""
    return {}, partial(_open_session, importlib.import_module(f"benchmarks.peers.{request['peer']}"))


@contextmanager
def _open_session(module: ModuleType, request: Request) -> Iterator[tuple[Answer, Turn]]:
    """Answer `{"loader", "workers"}` with whether the loader keeps files, and the values of its settings to try."""
    function = getattr(module, request["loader"])
    usual = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    usual["workers"] = request["workers"]
    alternatives = {
        name: [value for value in values if value != usual[name]]
        for name, values in getattr(function, "settings", {}).items()
    }
    answer = {"prepares": hasattr(function, "prepare"), "alternatives": alternatives}
    yield answer, lambda request: _answer(function, LoaderRequest.from_json(request))


def _answer(function: Any, request: LoaderRequest) -> Answer:
    if not request.records:  # data that the loader keeps are to be written
        function.prepare(request.arguments["path"], request.arguments["folder"])
        return {}
    taken = inspect.signature(function).parameters
    loader = function(**{name: value for name, value in request.arguments.items() if name in taken})
    try:
        return measure(loader, request).to_json()
    finally:
        close = getattr(loader, "close", None)
        if close is not None:
            close()


def measure(loader: Iterable[Any], request: LoaderRequest) -> LoadedEpochs:
    """Time epochs of `loader`, after one that is not timed.

    Time starts with the last batch of that one: a loader that begins with the next epoch by itself gains nothing.

    Raises
    ------
    ValueError
        If the checked epoch lacks a record, or an image has another shape or dtype than the others' images.
    """
    watched: dict[str, list[float]] = {}
    peak_nbytes = 0
    if request.is_checked:
        with PeakMemory() as peak:
            watched = check_epoch(loader, request.records)
        peak_nbytes = peak.nbytes
    for _ in loader:
        pass
    epochs: list[float] = []
    cpu = cpu_seconds()
    while sum(epochs) < request.seconds:
        started = time.perf_counter()
        for _ in loader:
            pass
        epochs.append(time.perf_counter() - started)
    return LoadedEpochs(epochs, cpu_seconds() - cpu, peak_nbytes, watched)


def check_epoch(loader: Iterable[Any], records: int) -> dict[str, list[float]]:
    """Return some pixels of the first `WATCHED` photographs by label; every record has to come once."""
    labels: list[int] = []
    watched: dict[str, list[float]] = {}
    for batch in loader:
        images, kinds = views_in(batch)
        if images.shape[1:] != (3, SIZE, SIZE) or images.dtype != np.float32:
            raise ValueError(f"its images are {images.dtype} of shape {images.shape}")
        for image, label in zip(images, kinds.tolist(), strict=True):
            labels.append(label)
            if label < WATCHED:
                watched[str(label)] = np.round(image[:, ::STEP, ::STEP], 4).ravel().tolist()
    if sorted(labels) != list(range(records)):
        raise ValueError(f"an epoch has {len(labels):,} records, {len(set(labels)):,} of {records:,} different ones")
    return watched
