"""The work that is measured: records and stores of them, the iterator of a cell, and the model that computes."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import etl
import presave
from benchmarks.cells import (
    BASE,
    DIGITS,
    FORMATS,
    NEW,
    PHOTOGRAPHS,
    RAGGED_STAGES,
    READ,
    SEQUENCES,
    TABLE,
    Cell,
    Profile,
)
from benchmarks.datasets import (
    COLUMNS,
    KINDS,
    LABEL,
    SEQUENCE_CLASSES,
    STEP_COLUMNS,
    find_digits,
    find_photographs,
    find_sequences,
    find_table,
)
from benchmarks.measuring.clock import Step
from benchmarks.measuring.device import OneInFlight
from benchmarks.measuring.values import JsonValues
from benchmarks.public_names import find_public

SEED = 0
# Jobs that write a store.
JOBS = 2
MODELS = {PHOTOGRAPHS: "residual", DIGITS: "lenet", TABLE: "mlp", SEQUENCES: "lstm"}
LEARNING_RATE = 0.01
# Rows of a table for each photograph of a profile, since they are so much smaller.
ROWS_PER_SAMPLE = 64


@dataclass(frozen=True)
class PreparedLoader(JsonValues):
    """A user's loader, after its `prepare` was run.

    Attributes
    ----------
    function : str
        "package.module:function".
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
class OtherData(JsonValues):
    """The data of another workload than photographs.

    Attributes
    ----------
    path : str
        Their file or folder.
    shape : list of int
        Shape of a record's features, as `etl.models.create` takes it.
    """

    path: str
    shape: list[int]
    classes: int


@dataclass(frozen=True)
class Data(JsonValues):
    """The photographs and other data, and the stores of them.

    Attributes
    ----------
    photographs : str
        Their folder.
    image_size : int
        Pixels a side that they are resized to.
    stores : dict of str to str
        Path of each store, by `store_name`, as in all further attributes but the last.
    failures : dict of str to str
        Tracebacks of the stores that could not be written.
    loaders : dict of str to PreparedLoader
        User loaders, by strategy.
    others : dict of str to OtherData
        Data of other workloads, by workload.
    """

    photographs: str
    image_size: int
    classes: int
    records: int
    stores: dict[str, str]
    write_seconds: dict[str, float]
    store_nbytes: dict[str, int]
    failures: dict[str, str]
    loaders: dict[str, PreparedLoader] = field(default_factory=dict)
    others: dict[str, OtherData] = field(default_factory=dict)


def make_data(profile: Profile, folder: Path, cells: Iterable[Cell] = ()) -> Data:
    """Make the data, and the stores that `cells` and the base point read.

    The data are made once for the machine and are the same files for every commit. The commit under test writes the
    stores.
    """
    photographs = find_photographs(profile.samples)
    source = etl.ImageFolder(photographs)
    data = Data(str(photographs), profile.image_size, len(source.classes), len(source), {}, {}, {}, {})
    # A batch of one: the store of all photographs, each once.
    chosen = [Cell(batch_size=1), *cells]
    for workload in {each.workload for each in chosen} - {PHOTOGRAPHS}:
        data.others[workload] = _make_other(workload, profile)
    for cell in {store_name(each, data): each for each in chosen if each.is_presaved}.values():
        _make_store(cell, data, folder / f"{store_name(cell, data).replace(' ', '-')}.store")
    return data


def _make_other(workload: str, profile: Profile) -> OtherData:
    if workload == DIGITS:
        return OtherData(str(find_digits()), [1, 28, 28], 10)
    if workload == TABLE:
        return OtherData(str(find_table(profile.samples * ROWS_PER_SAMPLE)), [COLUMNS], KINDS)
    return OtherData(str(find_sequences(profile.samples)), [STEP_COLUMNS], SEQUENCE_CLASSES)


def store_name(cell: Cell, data: Data) -> str:
    """Return the name of the store that a cell reads; a batch of more photographs than there are has one of its own."""
    records = records_of(cell, data)
    return cell.store if records == data.records or cell.workload != PHOTOGRAPHS else f"{cell.store} of {records}"


def records_of(cell: Cell, data: Data) -> int:
    """Return the photographs of an epoch of `cell`: all, repeated if a larger batch than usual needs more."""
    return data.records if cell.batch_size <= BASE.batch_size else max(data.records, cell.batch_size)


def open_source(data: Data, cell: Cell | None = None) -> Any:
    """Open the records of `cell`, by default photographs, as they are on disk."""
    if cell is not None and cell.workload != PHOTOGRAPHS:
        path = data.others[cell.workload].path
        return etl.open_source(path, label=LABEL) if cell.workload == TABLE else etl.open_source(path)
    source = etl.ImageFolder(data.photographs)
    records = data.records if cell is None else records_of(cell, data)
    return source if records == len(source) else Repeated(source, records)


class Repeated:
    """The records of `source` again and again, `records` in all."""

    thread_safe = True

    def __init__(self, source: Any, records: int) -> None:
        self._source = source
        self._records = records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> Any:
        return self._source[index % len(self._source)]


def files_of(cell: Cell, data: Data) -> list[Path]:
    """Return the files that an epoch of `cell`, which is not a user's loader, reads."""
    if cell.is_presaved:
        path = _written_store(cell, data)
    else:
        path = data.photographs if cell.workload == PHOTOGRAPHS else data.others[cell.workload].path
    root = Path(path)
    return [each for each in root.rglob("*") if each.is_file()] if root.is_dir() else [root]


def _written_store(cell: Cell, data: Data) -> str:
    """Return the path of the store that a cell reads; raise `RuntimeError` with the reason if it was not written."""
    name = store_name(cell, data)
    if name in data.failures:
        raise RuntimeError(f"the store {name!r} was not written:\n{data.failures[name]}")
    return data.stores[name]


def make_pipeline(data: Data, workload: str = PHOTOGRAPHS) -> etl.Pipeline:
    """Return the stages between a record on disk and training, in the order of `STAGES`."""
    if workload == PHOTOGRAPHS:
        return etl.image_pipeline(size=data.image_size)
    return etl.digits_pipeline() if workload == DIGITS else etl.Pipeline([])


def stage_of(cell: Cell) -> str:
    """Return the last stage that is done before the store of `cell` is written."""
    return cell.presave_stage if cell.workload == PHOTOGRAPHS else READ


def _make_store(cell: Cell, data: Data, path: Path) -> None:
    """Write the store of `cell` at `path`, and note its cost in `data`, or the traceback if it fails."""
    name = store_name(cell, data)
    try:
        pipeline = make_pipeline(data, cell.workload)
        source = open_source(data, cell)
        warm = [source[index] for index in range(len(source))]  # files are in memory, the format's library is imported
        write_store(path.with_suffix(".first"), warm[:1], pipeline, cell.presave_format, stage_of(cell))
        started = time.perf_counter()
        write_store(path, source, pipeline, cell.presave_format, stage_of(cell))
        seconds = time.perf_counter() - started
        with open_store(path, cell.presave_format) as store:
            data.store_nbytes[name] = store.nbytes
    except Exception:  # noqa: BLE001 - reported by the metrics of this store; other stores are measured
        data.failures[name] = traceback.format_exc()
        return
    data.stores[name] = str(path)
    data.write_seconds[name] = seconds


def write_store(
    path: Path, source: presave.RecordSequence, pipeline: etl.Pipeline, format_name: str, stage: str
) -> None:
    """Write a store of records that are processed up to a stage.

    Parameters
    ----------
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
        return "user loaders cannot be opened at this commit"
    if cell.workload != PHOTOGRAPHS and None in map(find_public, ("open_source", "Sequences", "Padding")):
        return "only photographs can be loaded in this way at this commit"
    if cell.is_presaved and (reason := unsupported_store_reason(cell.presave_format, cell.presave_stage)):
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
    """Return the iterator of the cell's strategy, which is one of this package. All shuffle with the same seed.

    Parameters
    ----------
    wrap : callable, optional
        Returns a loader to use in place of the iterator's own.
    """
    pipeline = make_pipeline(data, cell.workload)
    order: dict[str, Any] = {"batch_size": cell.batch_size, "shuffle": True, "seed": SEED, "dtype": cell.dtype}
    if cell.buffers == NEW:
        order["reuse"] = False
    if cell.workload == SEQUENCES:
        order["padding"] = find_public("Padding")()
    iterator: Any
    if cell.is_presaved:
        store = open_store(_written_store(cell, data), cell.presave_format)
        iterator = etl.PresavedIterator(store, after(pipeline, stage_of(cell)), **order)
    else:
        iterator = etl.RawIterator(open_source(data, cell), pipeline, **order)
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
    """Return how many threads compute in `cell`: one for each CPU that does not decode ahead, and at least one.

    All cells have the same CPUs. A plain strategy computes with all of them. So does one that reads a store ahead,
    which takes a thirtieth of the time of compute: with a thread less it took 1.5 times as long. One that decodes ahead
    splits them: with all it took 1.6 times as long (2 CPUs, profile "quick").
    """
    decodes_ahead = cell.is_async and not cell.is_presaved and cell.prefetch_size > 0
    return max(1, cpus - (cell.worker_count if decodes_ahead else 0))


class CellCompute:
    """A model with the same initial weights for every cell, and one step of training or inference with it.

    Parameters
    ----------
    distributed : callable, optional
        Returns a model that averages its gradients with other ranks, called with the model that is trained.

    Attributes
    ----------
    step : Step
        Moves a batch to the device and does forward, backward and a step of gradient descent; in inference forward
        only. On a device other than the CPU it returns before that is done, with at most one step in flight, like a
        training loop that reads its loss every few steps.
    no_op : Step
        A step of the same kind that does nothing.
    device : str
        Where it computes.
    """

    weights: str | None = None
    transfers: Sequence[float] | None = None

    def __init__(self, cell: Cell, data: Data, distributed: Callable[[Any], Any] | None = None) -> None:
        import torch

        self._backend = etl.backend(cell.backend)
        shape: tuple[int, ...]
        if cell.workload == PHOTOGRAPHS:
            shape, classes = (3, data.image_size, data.image_size), data.classes
        else:
            shape, classes = tuple(data.others[cell.workload].shape), data.others[cell.workload].classes
        model = etl.models.create(MODELS[cell.workload], shape, classes, seed=SEED)
        self._trains = cell.compute == "training"
        self._model = self._backend.place(model, cell.dtype).train(self._trains)
        if distributed is not None and self._trains:
            self._model = distributed(self._model)
        self._optimizer = _optimizer(cell.updater, self._model.parameters())
        self._loss = torch.nn.functional.cross_entropy
        self._inference_mode = torch.inference_mode
        self._result: Any = None
        run = self._train if self._trains else self._infer
        self.step: Step = run
        self.no_op: Step = _do_nothing
        if cell.backend != "cpu":
            self.step, self.no_op = (
                OneInFlight(each, lambda: torch.cuda.Event(enable_timing=True)) for each in (run, _do_nothing)
            )
        self.device = cell.backend

    @property
    def score(self) -> float:
        """Loss of the last step; in inference the mean square of its outputs."""
        return float(self._result if self._trains else self._result.double().square().mean())

    def _train(self, batch: Any) -> None:
        moved = self._backend.put(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._outputs(moved), moved.labels)
        loss.backward()
        self._optimizer.step()
        self._result = loss.detach()

    def _infer(self, batch: Any) -> None:
        moved = self._backend.put(batch)
        with self._inference_mode():
            self._result = self._outputs(moved)

    def _outputs(self, batch: Any) -> Any:
        # Earlier commits have batches of features and labels only.
        mask = getattr(batch, "features_mask", None)
        return self._model(batch.features) if mask is None else self._model(batch.features, mask=mask)


def _do_nothing(batch: Any) -> None:
    pass


def _optimizer(name: str, parameters: Any) -> Any:
    import torch

    if name == "adam":
        return torch.optim.Adam(parameters, lr=LEARNING_RATE)
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9 if name == "momentum" else 0.0)
