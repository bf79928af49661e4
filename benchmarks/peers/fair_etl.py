"""fair-etl: its own loaders, as its README advises.

Under "Loading" it advises `decoder="turbo"` for photographs, and a few batches ahead; both are the defaults here. Tuned
like every other row.
"""

from __future__ import annotations

from typing import Any

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
    pipeline = etl.image_pipeline(size=SIZE).after("resize")
    iterator = etl.PresavedIterator(f"{folder}/photographs.store", pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


def load_store_with_their_loop(folder: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    """Load a store without this project's compiled loop: with that of the other rows, as a stage of the user."""

    def normalised(record: presave.Record) -> presave.Record:
        image = np.empty((3, SIZE, SIZE), np.float32)
        normalise(record["features"], image)
        return {**record, "features": image}

    preceding = etl.image_pipeline(size=SIZE).until("resize").stages
    pipeline = etl.Pipeline([normalised], preceding=preceding)
    iterator = etl.PresavedIterator(f"{folder}/photographs.store", pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


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


def _load(path: str, pipeline: etl.Pipeline, batch_size: int, workers: int, prefetch_size: int) -> Any:
    iterator = etl.RawIterator(etl.ImageFolder(path), pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


load_store.prepare = load_store_with_their_loop.prepare = load_map_with_our_loop.prepare = prepare_store
SETTINGS = {"workers": (1, 2, 3), "prefetch_size": (2, 3, 6)}
load_raw.settings = {"workers": (1, 2, 3), "prefetch_size": (2, 3, 6), "decoder": ("turbo", "pillow")}
load_crops.settings = load_antialiased_crops.settings = SETTINGS
load_store.settings = load_store_with_their_loop.settings = SETTINGS
load_map_with_our_loop.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
