"""Loaders for training data, and fair measurements of what loading costs.

    source = etl.ImageFolder("photos/")
    pipeline = etl.image_pipeline(size=224)
    train = etl.AsyncIterator(etl.RawIterator(source, pipeline, batch_size=64, shuffle=True))
    etl.fit(model, train, listeners=[etl.PerformanceListener(frequency=10)])

`import etl` loads nothing else: each name loads what it needs on first use. `backend`, `fit`, `models`, `doctor` and
`TorchDataset` load torch.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from etl.lazy_names import lazy_names, load_module

if TYPE_CHECKING:
    from etl import (
        demonstration,
        doctor,
        iterators,
        kernels,
        loading,
        models,
        runtime,
        sources,
        stages,
        strategies,
        training,
    )
    from etl.comparison.compare import compare, tune
    from etl.comparison.show.report import Report
    from etl.configuration import from_config
    from etl.iterators import AsyncIterator, PresavedIterator, RawIterator, SyntheticIterator
    from etl.iterators.device import DeviceIterator
    from etl.iterators.torch_dataset import TorchDataset
    from etl.loading.batch import Batch
    from etl.loading.records import records
    from etl.sources import Cifar10, Csv, Idx, ImageFolder, MapDataset, Sequences, Tar, open_source
    from etl.stages.pipeline import Pipeline
    from etl.stages.presets import cifar10_pipeline, digits_pipeline, image_pipeline
    from etl.strategies.task import Task
    from etl.training.backends import backend
    from etl.training.fit import fit
    from etl.training.listeners import PerformanceListener
    from etl.watching.watch import watch

__version__ = "0.1.0"

# The module of each public name.
_MODULES = {
    "etl": (
        "demonstration", "doctor", "iterators", "kernels", "loading", "models", "runtime", "sources", "stages",
        "strategies", "training",
    ),
    "etl.comparison.compare": ("compare", "tune"),
    "etl.comparison.show.report": ("Report",),
    "etl.configuration": ("from_config",),
    "etl.iterators": ("AsyncIterator", "PresavedIterator", "RawIterator", "SyntheticIterator"),
    "etl.iterators.device": ("DeviceIterator",),
    "etl.iterators.torch_dataset": ("TorchDataset",),
    "etl.loading.batch": ("Batch",),
    "etl.loading.records": ("records",),
    "etl.sources": ("Cifar10", "Csv", "Idx", "ImageFolder", "MapDataset", "Sequences", "Tar", "open_source"),
    "etl.stages.pipeline": ("Pipeline",),
    "etl.stages.presets": ("cifar10_pipeline", "digits_pipeline", "image_pipeline"),
    "etl.strategies.task": ("Task",),
    "etl.training.backends": ("backend",),
    "etl.training.fit": ("fit",),
    "etl.training.listeners": ("PerformanceListener",),
    "etl.watching.watch": ("watch",),
}  # fmt: skip
_find = lazy_names("etl", _MODULES)
# Names that were here before, and the module that has them now. They go in version 0.2.
_MOVED = {
    "etl.iterators": ("BatchIterator",),
    "etl.kernels": ("load_kernels",),
    "etl.loading": ("Padding", "Records", "gather_normalised"),
    "etl.sources": ("Record", "RecordError"),
    "etl.training": (
        "Backend", "Checkpoint", "EarlyStopping", "FitResult", "Iteration", "Listener", "ParallelInference",
        "Performance", "QueueFullError", "RankError", "RankResult", "fit_parallel",
    ),
}  # fmt: skip
_NEW_MODULE = {name: module for module, names in _MOVED.items() for name in names}

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
    "records",
    # iterators
    "RawIterator",
    "PresavedIterator",
    "AsyncIterator",
    "SyntheticIterator",
    "DeviceIterator",
    "Batch",
    "TorchDataset",
    "from_config",
    # measurements
    "watch",
    "compare",
    "tune",
    "Report",
    "Task",
    # training
    "backend",
    "fit",
    "PerformanceListener",
    # everything else
    "sources",
    "stages",
    "loading",
    "kernels",
    "iterators",
    "training",
    "models",
    "strategies",
    "runtime",
    "doctor",
    "demonstration",
]


def __getattr__(name: str) -> Any:
    module = _NEW_MODULE.get(name)
    if module is None:
        return _find(name)
    warnings.warn(f"etl.{name} is {module}.{name} now", DeprecationWarning, stacklevel=2)
    return getattr(load_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
