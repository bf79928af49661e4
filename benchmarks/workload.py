"""The work that is measured: the data, the iterator of a cell, and the model it trains."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

import etl
from benchmarks.cell import Cell
from benchmarks.measuring.clock import Step
from benchmarks.measuring.device import OneInFlight
from benchmarks.measuring.values import JsonValues
from benchmarks.profile import Profile
from benchmarks.stores import after, open_store, seconds_to_write, why_not_written

DATA_VARIABLE = "FAIR_ETL_DATA"
# Raised when the photographs change, so that no history mixes two sets of them.
DATA_VERSION = 1
SEED = 0
MODEL = "residual"
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Data(JsonValues):
    """Where the photographs are and, by name (see `Cell.store`), where their stores are, what writing each cost, and
    why one could not be written.
    """

    photographs: str
    image_size: int
    classes: int
    records: int
    stores: dict[str, str]
    write_seconds: dict[str, float]
    store_nbytes: dict[str, int]
    failures: dict[str, str]


def find_photographs(samples: int) -> Path:
    """The folder of so many photographs, made once for the machine below FAIR_ETL_DATA or the user's cache."""
    root = Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else user_cache_path("fair-etl")
    photographs = root / f"photographs-{DATA_VERSION}-{samples}-{SEED}"
    if not photographs.is_dir():
        etl.demonstration.photographs(photographs, samples, SEED)
    return photographs


def make_data(profile: Profile, folder: Path, cells: Iterable[Cell] = ()) -> Data:
    """Make the photographs once for the machine, and in `folder` the stores that `cells` read and that of the base
    point.

    The photographs are the same files for every commit; the stores are written by the commit under test.
    """
    photographs = find_photographs(profile.samples)
    source = etl.ImageFolder(photographs)
    data = Data(str(photographs), profile.image_size, len(source.classes), len(source), {}, {}, {}, {})
    for cell in {each.store: each for each in (Cell(), *cells) if each.is_presaved}.values():
        _make_store(cell, data, folder / f"{cell.store.replace(' ', '-')}.store")
    return data


def _make_store(cell: Cell, data: Data, path: Path) -> None:
    """Write the store of `cell` at `path`, and note in `data` what that cost, or why it failed."""
    try:
        seconds = seconds_to_write(
            path, open_source(data), make_pipeline(data), cell.presave_format, cell.presave_stage
        )
        with open_store(path, cell.presave_format) as store:
            data.store_nbytes[cell.store] = store.nbytes
    except Exception:  # noqa: BLE001 - reported by the figures of this store; those of the others are taken
        data.failures[cell.store] = traceback.format_exc()
        return
    data.stores[cell.store] = str(path)
    data.write_seconds[cell.store] = seconds


def why_not_here(cell: Cell) -> str:
    """What the commit under test lacks for `cell`; empty where nothing."""
    if cell.is_presaved:
        reason = why_not_written(cell.presave_format, cell.presave_stage)
        if reason:
            return reason
    arguments = inspect.signature(etl.AsyncIterator).parameters
    if cell.is_async and cell.worker_kind == "process" and "processes" not in arguments:
        return "there are no worker processes at this commit"
    if cell.is_async and cell.worker_count > 1 and "threads" not in arguments:
        return "one thread loads at this commit, not several"
    return ""


def open_source(data: Data) -> Any:
    """The records as they are on disk."""
    return etl.ImageFolder(data.photographs)


def make_pipeline(data: Data) -> etl.Pipeline:
    """What every record goes through before training, in the order of `STAGES`."""
    return etl.image_pipeline(size=data.image_size)


def make_iterator(cell: Cell, data: Data) -> Any:
    """The iterator of the cell's strategy. All strategies shuffle with the same seed."""
    pipeline = make_pipeline(data)
    order: dict[str, Any] = {"batch_size": cell.batch_size, "shuffle": True, "seed": SEED, "dtype": cell.dtype}
    iterator: Any
    if cell.is_presaved:
        if cell.store in data.failures:
            raise RuntimeError(f"the store {cell.store!r} was not written:\n{data.failures[cell.store]}")
        store = open_store(data.stores[cell.store], cell.presave_format)
        iterator = etl.PresavedIterator(store, after(pipeline, cell.presave_stage), **order)
    else:
        iterator = etl.RawIterator(open_source(data), pipeline, **order)
    if not cell.is_async:
        return iterator
    return etl.AsyncIterator(iterator, prefetch_size=cell.prefetch_size, **_workers(cell))


def _workers(cell: Cell) -> dict[str, Any]:
    if cell.worker_kind == "process":
        return {"workers": "process", "processes": cell.worker_count}
    # Earlier commits have one thread and no such argument.
    return {"threads": cell.worker_count} if "threads" in inspect.signature(etl.AsyncIterator).parameters else {}


def compute_threads(cell: Cell, cpus: int) -> int:
    """Return how many threads compute in `cell` on so many CPUs: one for each that does not load ahead, at least one.

    All cells have the same CPUs. A plain strategy computes with all of them, one that loads ahead splits them.
    """
    return max(1, cpus - (cell.worker_count if cell.is_async and cell.prefetch_size else 0))


class Training:
    """The same model from the same initial weights, and one step of stochastic gradient descent on it.

    Attributes
    ----------
    step : Step
        Moves a batch to the device, forward, backward, update. On a device other than the CPU it returns before that is
        done, with at most one step in flight, as a training loop does that reads its loss every few steps.
    score : tensor
        The loss of the last step.
    """

    def __init__(self, cell: Cell, data: Data) -> None:
        import torch

        self._backend = etl.backend(cell.backend)
        model = etl.models.create(MODEL, (3, data.image_size, data.image_size), data.classes, seed=SEED)
        self._model = self._backend.place(model, cell.dtype).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        self._loss = torch.nn.functional.cross_entropy
        self.score: Any = None
        self.step: Step = self._train
        if cell.backend != "cpu":
            self.step = OneInFlight(self._train, lambda: torch.cuda.Event(enable_timing=True))

    def _train(self, batch: Any) -> None:
        features, labels = self._backend.put(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._model(features), labels)
        loss.backward()
        self._optimizer.step()
        self.score = loss.detach()
