"""The work that is measured: the data, the iterator of a cell, and the model it trains."""

from __future__ import annotations

import inspect
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

import etl
import presave
from benchmarks.cell import Cell
from benchmarks.profile import Profile

DATA_VARIABLE = "FAIR_ETL_DATA"
# Raised when the photographs change, so that no history mixes two sets of them.
DATA_VERSION = 1
SEED = 0
PREFETCH_SIZE = 2
STAGE = "resize"
MODEL = "residual"
LEARNING_RATE = 0.01
# One thread computes and, in the async strategies, one more loads: compute is the same in all of them, and no strategy
# has more threads at work than the two cores of the smallest machine that this is run on.
COMPUTE_THREADS = LOADING_THREADS = 1


@dataclass(frozen=True)
class Data:
    """Where the photographs and their store are, and what writing the store cost."""

    photographs: str
    store: str
    image_size: int
    classes: int
    records: int
    write_seconds: float
    store_nbytes: int


def find_photographs(samples: int) -> Path:
    """The folder of so many photographs, made once for the machine below FAIR_ETL_DATA or the user's cache."""
    root = Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else user_cache_path("fair-etl")
    photographs = root / f"photographs-{DATA_VERSION}-{samples}-{SEED}"
    if not photographs.is_dir():
        etl.demonstration.photographs(photographs, samples, SEED)
    return photographs


def make_data(profile: Profile, folder: Path) -> Data:
    """Make the photographs once for the machine, and the store in `folder`.

    The photographs are the same files for every commit; the store is written by the commit under test.
    """
    photographs = find_photographs(profile.samples)
    source = etl.ImageFolder(photographs)
    pipeline = etl.image_pipeline(size=profile.image_size)
    path = folder / f"photographs-{profile.image_size}.store"
    started = time.perf_counter()
    store = presave.write(path, etl.records(source, pipeline.until(STAGE)), jobs=2)
    seconds = time.perf_counter() - started
    with store:
        return Data(
            photographs=str(photographs),
            store=str(path),
            image_size=profile.image_size,
            classes=len(source.classes),
            records=len(store),
            write_seconds=seconds,
            store_nbytes=store.nbytes,
        )


def make_iterator(cell: Cell, data: Data) -> Any:
    """The iterator of the cell's strategy. All strategies shuffle with the same seed."""
    pipeline = etl.image_pipeline(size=data.image_size)
    order: dict[str, Any] = {"batch_size": cell.batch_size, "shuffle": True, "seed": SEED, "dtype": cell.dtype}
    iterator: Any
    if cell.is_presaved:
        iterator = etl.PresavedIterator(data.store, pipeline.after(STAGE), **order)
    else:
        iterator = etl.RawIterator(etl.ImageFolder(data.photographs), pipeline, **order)
    if not cell.is_async:
        return iterator
    # Earlier commits have one thread and no such argument.
    takes_threads = "threads" in inspect.signature(etl.AsyncIterator).parameters
    threads: dict[str, Any] = {"threads": LOADING_THREADS} if takes_threads else {}
    return etl.AsyncIterator(iterator, prefetch_size=PREFETCH_SIZE, **threads)


class Training:
    """The same model from the same initial weights, and one step of stochastic gradient descent on it."""

    def __init__(self, cell: Cell, data: Data) -> None:
        import torch

        self._backend = etl.backend(cell.backend)
        model = etl.models.create(MODEL, (3, data.image_size, data.image_size), data.classes, seed=SEED)
        self._model = self._backend.place(model, cell.dtype).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        self._loss = torch.nn.functional.cross_entropy
        self.score: Any = None

    def __call__(self, batch: Any) -> None:
        """Move the batch to the device, forward, backward, update; returns when the device is done."""
        features, labels = self._backend.put(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._model(features), labels)
        loss.backward()
        self._optimizer.step()
        self.score = loss.detach()
        self._backend.synchronize()
