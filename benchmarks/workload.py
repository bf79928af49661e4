"""The work that is measured: photographs and stores of them, the iterator of a cell, and the model that computes."""

from __future__ import annotations

import inspect
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

import etl
import presave
from benchmarks.cells import FORMATS, RAGGED_STAGES, READ, Cell, Profile
from benchmarks.measuring.clock import Step
from benchmarks.measuring.device import OneInFlight
from benchmarks.measuring.values import JsonValues

DATA_VARIABLE = "FAIR_ETL_DATA"
# Incremented when the photographs change, so that no history mixes two sets of them.
DATA_VERSION = 1
SEED = 0
# Jobs that write a store.
JOBS = 2
MODEL = "residual"
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Loader(JsonValues):
    """A loader of the user, after its `prepare` was run.

    Attributes
    ----------
    function : str
        "package.module:function".
    folder : str
        The folder for its files.
    prepare_seconds : float
        Seconds that `prepare` took; 0 if there is none.
    nbytes : int
        Bytes of the files that `prepare` wrote.
    failure : str
        Traceback of `prepare`, if it failed.
    """

    function: str
    folder: str
    prepare_seconds: float = 0.0
    nbytes: int = 0
    failure: str = ""


@dataclass(frozen=True)
class Data(JsonValues):
    """The photographs, and the stores of them.

    Attributes
    ----------
    photographs : str
        Their folder.
    image_size : int
        Pixels a side that they are resized to.
    classes, records : int
        How many there are of each.
    stores : dict of str to str
        Path of each store, by `Cell.store`, as in all further attributes.
    write_seconds : dict of str to float
        Seconds to write each store.
    store_nbytes : dict of str to int
        Bytes of each store.
    failures : dict of str to str
        Tracebacks of the stores that could not be written.
    loaders : dict of str to Loader
        Loaders of the user, by strategy.
    """

    photographs: str
    image_size: int
    classes: int
    records: int
    stores: dict[str, str]
    write_seconds: dict[str, float]
    store_nbytes: dict[str, int]
    failures: dict[str, str]
    loaders: dict[str, Loader] = field(default_factory=dict)


def make_data(profile: Profile, folder: Path, cells: Iterable[Cell] = ()) -> Data:
    """Make the photographs, and the stores that `cells` and the base point read.

    The photographs are made once for the machine and are the same files for every commit. The commit under test writes
    the stores.

    Parameters
    ----------
    profile : Profile
        Decides how many photographs there are, and of what size.
    folder : path
        For the stores.
    cells : iterable of Cell
        The cells whose stores are written.
    """
    photographs = find_photographs(profile.samples)
    source = etl.ImageFolder(photographs)
    data = Data(str(photographs), profile.image_size, len(source.classes), len(source), {}, {}, {}, {})
    for cell in {each.store: each for each in (Cell(), *cells) if each.is_presaved}.values():
        _make_store(cell, data, folder / f"{cell.store.replace(' ', '-')}.store")
    return data


def find_photographs(samples: int) -> Path:
    """Return a folder of `samples` photographs, made once for the machine below FAIR_ETL_DATA or the user's cache."""
    root = Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else user_cache_path("fair-etl")
    photographs = root / f"photographs-{DATA_VERSION}-{samples}-{SEED}"
    if not photographs.is_dir():
        etl.demonstration.photographs(photographs, samples, SEED)
    return photographs


def open_source(data: Data) -> Any:
    """Open the records as they are on disk."""
    return etl.ImageFolder(data.photographs)


def make_pipeline(data: Data) -> etl.Pipeline:
    """Return the stages between a record on disk and training, in the order of `STAGES`."""
    return etl.image_pipeline(size=data.image_size)


def _make_store(cell: Cell, data: Data, path: Path) -> None:
    """Write the store of `cell` at `path`, and note its cost in `data`, or the traceback if it fails."""
    try:
        seconds = seconds_to_write(
            path, open_source(data), make_pipeline(data), cell.presave_format, cell.presave_stage
        )
        with open_store(path, cell.presave_format) as store:
            data.store_nbytes[cell.store] = store.nbytes
    except Exception:  # noqa: BLE001 - reported by the metrics of this store; other stores are measured
        data.failures[cell.store] = traceback.format_exc()
        return
    data.stores[cell.store] = str(path)
    data.write_seconds[cell.store] = seconds


def seconds_to_write(
    path: Path, source: presave.RecordSequence, pipeline: etl.Pipeline, format_name: str, stage: str
) -> float:
    """Return the seconds of `write_store`, with the format's library imported and the source's files in memory.

    Parameters
    ----------
    path, source, pipeline, format_name, stage
        As `write_store` takes them.
    """
    warm = [source[index] for index in range(len(source))]
    first = path.with_suffix(".first")
    write_store(first, warm[:1], pipeline, format_name, stage)
    started = time.perf_counter()
    write_store(path, source, pipeline, format_name, stage)
    return time.perf_counter() - started


def write_store(
    path: Path, source: presave.RecordSequence, pipeline: etl.Pipeline, format_name: str, stage: str
) -> None:
    """Write a store of records that are processed up to a stage.

    Parameters
    ----------
    path : path
        The store.
    source : sequence of records
        The encoded records.
    pipeline : Pipeline
        All stages.
    format_name : str
        A key of `FORMATS`.
    stage : str
        The last stage that is done, one of `STAGES`.
    """
    presave.write(path, etl.records(source, until(pipeline, stage)), jobs=JOBS, **FORMATS[format_name]).close()


def open_store(path: str | Path, format_name: str) -> presave.Store:
    """Open the store that `write_store` wrote in this format."""
    # Earlier commits have no pickle and no such argument.
    trusted: dict[str, Any] = {"trusted": True} if FORMATS[format_name]["format"] == "pickle" else {}
    return presave.open_store(path, **trusted)


def until(pipeline: etl.Pipeline, stage: str) -> etl.Pipeline:
    """Return the part of the pipeline that is done when a store is written."""
    return etl.Pipeline([]) if stage == READ else pipeline.until(stage)


def after(pipeline: etl.Pipeline, stage: str) -> etl.Pipeline:
    """Return the part of the pipeline that is left to do when the store is read."""
    return pipeline if stage == READ else pipeline.after(stage)


def unsupported_reason(cell: Cell) -> str:
    """Return what the commit under test lacks for `cell`, or an empty string."""
    if cell.is_foreign and not hasattr(getattr(etl, "strategies", None), "open_loader"):
        return "loaders of the user cannot be opened at this commit"
    if cell.is_presaved:
        reason = unsupported_store_reason(cell.presave_format, cell.presave_stage)
        if reason:
            return reason
    arguments = inspect.signature(etl.AsyncIterator).parameters
    if cell.is_async and cell.worker_kind == "process" and "processes" not in arguments:
        return "there are no worker processes at this commit"
    if cell.is_async and cell.worker_count > 1 and "threads" not in arguments:
        return "one thread loads at this commit, not several"
    return ""


def unsupported_store_reason(format_name: str, stage: str) -> str:
    """Return what the commit under test lacks for this store, or an empty string."""
    written = FORMATS[format_name]
    arguments = inspect.signature(presave.write).parameters
    if written["format"] not in presave.formats():
        return f"this commit has no format {written['format']!r}"
    if "options" in written and "options" not in arguments:
        return "formats have no options at this commit"
    if stage in RAGGED_STAGES and "ragged" not in arguments:
        return "stores hold no records of different sizes at this commit"
    return ""


def make_iterator(cell: Cell, data: Data, wrap: Callable[[Any], Any] | None = None) -> Any:
    """Return the iterator of the cell's strategy, which is none of the user's. All shuffle with the same seed.

    Parameters
    ----------
    cell : Cell
        The strategy and its settings.
    data : Data
        The photographs and their stores.
    wrap : callable, optional
        Returns a loader to use in place of the iterator's own.
    """
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
    if wrap is not None:
        # Earlier commits call it `watch_loader`.
        getattr(iterator, "wrap_loader" if hasattr(iterator, "wrap_loader") else "watch_loader")(wrap)
    if not cell.is_async:
        return iterator
    return etl.AsyncIterator(iterator, prefetch_size=cell.prefetch_size, **_workers(cell))


def _workers(cell: Cell) -> dict[str, Any]:
    if cell.worker_kind == "process":
        return {"workers": "process", "processes": cell.worker_count}
    # Earlier commits have one thread and no such argument.
    return {"threads": cell.worker_count} if "threads" in inspect.signature(etl.AsyncIterator).parameters else {}


def compute_threads(cell: Cell, cpus: int) -> int:
    """Return how many threads compute in `cell`: one for each CPU that does not load ahead, and at least one.

    All cells have the same CPUs. A plain strategy computes with all of them; one that loads ahead splits them.
    """
    return max(1, cpus - (cell.worker_count if cell.is_async and cell.prefetch_size else 0))


class Compute:
    """A model with the same initial weights for every cell, and one step of training or inference with it.

    Parameters
    ----------
    cell : Cell
        The cell.
    data : Data
        The photographs.
    distributed : callable, optional
        Returns a model that averages its gradients with other ranks, called with the model that is trained.

    Attributes
    ----------
    step : Step
        Moves a batch to the device and does forward, backward and a step of gradient descent; in inference forward
        only. On a device other than the CPU it returns before that is done, with at most one step in flight, like a
        training loop that reads its loss every few steps.
    """

    def __init__(self, cell: Cell, data: Data, distributed: Callable[[Any], Any] | None = None) -> None:
        import torch

        self._backend = etl.backend(cell.backend)
        model = etl.models.create(MODEL, (3, data.image_size, data.image_size), data.classes, seed=SEED)
        self._trains = cell.compute == "training"
        self._model = self._backend.place(model, cell.dtype).train(self._trains)
        if distributed is not None and self._trains:
            self._model = distributed(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        self._loss = torch.nn.functional.cross_entropy
        self._inference_mode = torch.inference_mode
        self._result: Any = None
        run = self._train if self._trains else self._infer
        self.step: Step = run
        if cell.backend != "cpu":
            self.step = OneInFlight(run, lambda: torch.cuda.Event(enable_timing=True))

    @property
    def score(self) -> float:
        """Loss of the last step; in inference the mean square of its outputs."""
        return float(self._result if self._trains else self._result.double().square().mean())

    def _train(self, batch: Any) -> None:
        features, labels = self._backend.put(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._model(features), labels)
        loss.backward()
        self._optimizer.step()
        self._result = loss.detach()

    def _infer(self, batch: Any) -> None:
        features, _ = self._backend.put(batch)
        with self._inference_mode():
            self._result = self._model(features)
