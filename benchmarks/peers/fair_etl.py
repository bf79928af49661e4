"""fair-etl: its own loaders, as its README advises.

Under "Loading" it advises `decoder="turbo"` for photographs, and a few batches ahead; both are the defaults here. Tuned
like every other row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import etl
import presave
from benchmarks.peers.loader import SIZE, ReadAhead, normalise

etl.kernels.load_kernels()  # before the first batch, not in the background beside it


def load_raw(path: str, batch_size: int, workers: int, prefetch_size: int = 3, decoder: str = "turbo") -> Any:
    return _load(path, etl.image_pipeline(size=SIZE, decoder=decoder), batch_size, workers, prefetch_size)


def load_crops(path: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    return _load(path, _crops("opencv"), batch_size, workers, prefetch_size)


def load_antialiased_crops(path: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    return _load(path, _crops("pillow"), batch_size, workers, prefetch_size)


def prepare_store(path: str, folder: str) -> None:
    pipeline = etl.image_pipeline(size=SIZE).until("resize")
    presave.write(f"{folder}/photographs.store", etl.records(etl.ImageFolder(path), pipeline)).close()


def load_store(folder: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    return _load_store(folder, etl.image_pipeline(size=SIZE).after("resize"), batch_size, workers, prefetch_size)


def normalised(record: presave.Record) -> presave.Record:
    """Return a record normalised by the loop of the other rows: a user's step, as a function."""
    image = np.empty((3, SIZE, SIZE), np.float32)
    normalise(record["features"], image)
    return {**record, "features": image}


@dataclass(frozen=True)
class NormalisedInPlace:
    """The same step as a stage that writes into the batch."""

    name: ClassVar[str] = "normalised"
    written_dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    def __call__(self, record: presave.Record) -> presave.Record:
        return normalised(record)

    def write_into(self, features: np.ndarray, out: np.ndarray) -> None:
        normalise(features, out)


def load_store_with_their_loop(folder: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    """Load a store without this project's compiled loop: with that of the other rows."""
    return _load_store(folder, _after_resize(normalised), batch_size, workers, prefetch_size)


def load_store_with_their_loop_in_place(folder: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    """Do what `load_store_with_their_loop` does, without an array and a copy for each record."""
    return _load_store(folder, _after_resize(NormalisedInPlace()), batch_size, workers, prefetch_size)


def load_map_with_our_loop(folder: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    """Load a memory map by threads of the standard library, with this project's compiled loop."""
    store, stage = presave.open_store(f"{folder}/photographs.store"), etl.stages.Normalise()

    def fill(batch: np.ndarray, indices: np.ndarray) -> None:
        etl.loading.gather_normalised(store, indices, stage, batch)

    labels = store.gather(range(len(store)), {"label": None})["label"]
    return ReadAhead(labels, fill, batch_size, workers, ahead)


def _crops(resizer: str) -> etl.Pipeline:
    stages: list[Any] = [
        etl.stages.Decode("turbo"),
        etl.stages.RandomResizedCrop(SIZE, SIZE, resizer),
        etl.stages.RandomFlip(),
        etl.stages.ChannelsFirst(),
        etl.stages.Normalise(),
    ]
    return etl.Pipeline(stages)


def _after_resize(stage: Any) -> etl.Pipeline:
    return etl.Pipeline([stage], preceding=etl.image_pipeline(size=SIZE).until("resize").stages)


def _load_store(folder: str, pipeline: etl.Pipeline, batch_size: int, workers: int, prefetch_size: int) -> Any:
    iterator = etl.PresavedIterator(f"{folder}/photographs.store", pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


def _load(path: str, pipeline: etl.Pipeline, batch_size: int, workers: int, prefetch_size: int) -> Any:
    iterator = etl.RawIterator(etl.ImageFolder(path), pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


load_store.prepare = load_store_with_their_loop.prepare = load_store_with_their_loop_in_place.prepare = prepare_store
load_map_with_our_loop.prepare = prepare_store
SETTINGS = {"workers": (1, 2, 3), "prefetch_size": (2, 3, 6)}
load_raw.settings = {"workers": (1, 2, 3), "prefetch_size": (2, 3, 6), "decoder": ("turbo", "pillow")}
load_crops.settings = load_antialiased_crops.settings = SETTINGS
load_store.settings = load_store_with_their_loop.settings = load_store_with_their_loop_in_place.settings = SETTINGS
load_map_with_our_loop.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
