"""Loaders for training data, and fair measurements of what loading costs.

    source = etl.ImageFolder("photos/")
    pipeline = etl.image_pipeline(size=224)
    train = etl.AsyncIterator(etl.RawIterator(source, pipeline, batch_size=64, shuffle=True))
    etl.fit(model, train, listeners=[etl.PerformanceListener(frequency=10)])

`import etl` does not load torch; `backend`, `fit`, `models`, `doctor` and `TorchDataset` load it on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from etl import demonstration, runtime, stages
from etl.iterators import AsyncIterator, BatchIterator, PresavedIterator, RawIterator, SyntheticIterator
from etl.iterators.device import DeviceIterator
from etl.kernels import load_kernels
from etl.loading.batch import Batch
from etl.loading.gather_normalised import gather_normalised
from etl.loading.padding import Padding
from etl.loading.records import Records, records
from etl.sources import Cifar10, Csv, Idx, ImageFolder, MapDataset, Sequences, Tar, open_source
from etl.sources.record import Record, RecordError
from etl.stages.pipeline import Pipeline
from etl.stages.presets import cifar10_pipeline, digits_pipeline, image_pipeline
from etl.training.backends import Backend, backend
from etl.training.fit import FitResult, fit
from etl.training.listeners import Iteration, Listener, Performance, PerformanceListener

if TYPE_CHECKING:
    from etl import doctor, models
    from etl.iterators.torch_dataset import TorchDataset

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
    # training
    "Backend",
    "backend",
    "fit",
    "FitResult",
    "models",
    "Listener",
    "Iteration",
    "PerformanceListener",
    "Performance",
    # surroundings
    "runtime",
    "doctor",
    "demonstration",
]


def __getattr__(name: str) -> Any:
    # These load torch, which a machine that only writes stores does not need.
    if name in ("models", "doctor"):
        return importlib.import_module(f"etl.{name}")
    if name == "TorchDataset":
        return importlib.import_module("etl.iterators.torch_dataset").TorchDataset
    raise AttributeError(f"module 'etl' has no attribute {name!r}")
