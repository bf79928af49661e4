"""Loaders for training data, and fair measurements of what loading costs.

    source = etl.ImageFolder("photos/")
    pipeline = etl.image_pipeline(size=224)
    train = etl.AsyncIterator(etl.RawIterator(source, pipeline, batch_size=64, shuffle=True))
    etl.fit(model, train, listeners=[etl.PerformanceListener(frequency=10)])

`import etl` loads nothing else: each name loads what it needs on first use. `backend`, `fit`, `models`, `doctor` and
`TorchDataset` load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl import demonstration, doctor, models, runtime, stages, strategies
    from etl.comparison.compare import compare, tune
    from etl.comparison.show.report import Report
    from etl.configuration import from_config
    from etl.iterators import AsyncIterator, BatchIterator, PresavedIterator, RawIterator, SyntheticIterator
    from etl.iterators.device import DeviceIterator
    from etl.iterators.torch_dataset import TorchDataset
    from etl.kernels import load_kernels
    from etl.loading.batch import Batch
    from etl.loading.gather_normalised import gather_normalised
    from etl.loading.padding import Padding
    from etl.loading.records import Records, records
    from etl.sources import Cifar10, Csv, Idx, ImageFolder, MapDataset, Sequences, Tar, open_source
    from etl.sources.record import Record, RecordError
    from etl.stages.pipeline import Pipeline
    from etl.stages.presets import cifar10_pipeline, digits_pipeline, image_pipeline
    from etl.strategies.task import Task
    from etl.training.backends import Backend, backend
    from etl.training.checkpoint import Checkpoint
    from etl.training.early_stopping import EarlyStopping
    from etl.training.fit import FitResult, RankResult, fit
    from etl.training.inference import ParallelInference
    from etl.training.listeners import Iteration, Listener, Performance, PerformanceListener
    from etl.training.parallel import fit_parallel
    from etl.training.ranks import RankError
    from etl.training.request_queue import QueueFullError
    from etl.watching.watch import watch

# The module of each public name. They are imported on first use: a program that only takes a `Task` needs none of the
# packages that iterators need.
_MODULES = {
    "etl": ("demonstration", "doctor", "models", "runtime", "stages", "strategies"),
    "etl.comparison.compare": ("compare", "tune"),
    "etl.comparison.show.report": ("Report",),
    "etl.configuration": ("from_config",),
    "etl.iterators": ("AsyncIterator", "BatchIterator", "PresavedIterator", "RawIterator", "SyntheticIterator"),
    "etl.iterators.device": ("DeviceIterator",),
    "etl.iterators.torch_dataset": ("TorchDataset",),
    "etl.kernels": ("load_kernels",),
    "etl.loading.batch": ("Batch",),
    "etl.loading.gather_normalised": ("gather_normalised",),
    "etl.loading.padding": ("Padding",),
    "etl.loading.records": ("Records", "records"),
    "etl.sources": ("Cifar10", "Csv", "Idx", "ImageFolder", "MapDataset", "Sequences", "Tar", "open_source"),
    "etl.sources.record": ("Record", "RecordError"),
    "etl.stages.pipeline": ("Pipeline",),
    "etl.stages.presets": ("cifar10_pipeline", "digits_pipeline", "image_pipeline"),
    "etl.strategies.task": ("Task",),
    "etl.training.checkpoint": ("Checkpoint",),
    "etl.training.early_stopping": ("EarlyStopping",),
    "etl.training.parallel": ("fit_parallel",),
    "etl.training.ranks": ("RankError",),
    "etl.training.backends": ("Backend", "backend"),
    "etl.training.fit": ("FitResult", "RankResult", "fit"),
    "etl.training.inference": ("ParallelInference",),
    "etl.training.listeners": ("Iteration", "Listener", "Performance", "PerformanceListener"),
    "etl.training.request_queue": ("QueueFullError",),
    "etl.watching.watch": ("watch",),
}
__version__ = "0.1.0"
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    # sources and pipelines
    "ImageFolder",
    "Idx",
    "Cifar10",
    "Csv",
    "Sequences",
    "Tar",
    "MapDataset",
    "open_source",
    "Pipeline",
    "image_pipeline",
    "digits_pipeline",
    "cifar10_pipeline",
    "stages",
    "Record",
    "Records",
    "records",
    "RecordError",
    # iterators
    "RawIterator",
    "PresavedIterator",
    "AsyncIterator",
    "SyntheticIterator",
    "DeviceIterator",
    "BatchIterator",
    "Batch",
    "Padding",
    "gather_normalised",
    "load_kernels",
    "TorchDataset",
    "from_config",
    # what a loop waits for
    "watch",
    # comparisons
    "compare",
    "tune",
    "Report",
    "Task",
    "strategies",
    # training
    "Backend",
    "backend",
    "fit",
    "fit_parallel",
    "FitResult",
    "RankResult",
    "RankError",
    "EarlyStopping",
    "Checkpoint",
    "models",
    "Listener",
    "Iteration",
    "PerformanceListener",
    "Performance",
    # serving
    "ParallelInference",
    "QueueFullError",
    # surroundings
    "runtime",
    "doctor",
    "demonstration",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'etl' has no attribute {name!r}")
    found = _import(f"etl.{name}") if module == "etl" else getattr(_import(module), name)
    globals()[name] = found
    return found


def _import(module: str) -> Any:
    if module == "etl.strategies.task":  # used where `presave` cannot be imported
        return importlib.import_module(module)
    from presave import forks

    # A child that is forked while another thread imports would wait forever for the lock of that import.
    with forks.held_off():
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
