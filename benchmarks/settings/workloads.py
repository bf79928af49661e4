"""What is done under a setting: each gives a function that does one epoch of it.

An epoch's result is the same whatever the setting, but for dtypes, whose arithmetic differs.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import etl
from benchmarks.axes import BACKENDS
from benchmarks.cell import Cell
from benchmarks.measuring.arrays import touch
from benchmarks.measuring.clock import run_epoch
from benchmarks.settings.setting import Setting, on_backend
from benchmarks.workload import SEED, Data, Training, make_iterator, make_pipeline, open_source

Epoch = Callable[[], float]

BATCH_SIZE = 32
PREFETCH_SIZE = 2
# As in the documents' example of a batch that is allocated afresh: 38 MB.
NEW_BATCH_SHAPE = (64, 3, 224, 224)
NEW_BATCHES = 1
PRODUCT_SIDE = 512
# Annotations of images, as a data set for detection has them, are a dictionary with a list each: half a million are
# tracked by the collector for as long as the training lasts. Those of a batch are parsed, and kept for a while.
ANNOTATIONS = 125_000
ANNOTATIONS_A_BATCH = 64 * 20
ANNOTATED_BATCHES = 5
BATCHES_KEPT = 50


@contextmanager
def training(setting: Setting, data: Data, backend: str) -> Iterator[Epoch]:
    """Presaved photographs train the small residual network."""
    cell = Cell(batch_size=BATCH_SIZE, dtype=setting.dtype, backend=backend)
    with make_iterator(cell, data) as iterator:
        yield _trained(iterator, Training(cell, data))


@contextmanager
def training_beside_decoding(setting: Setting, data: Data) -> Iterator[Epoch]:
    """The same, of photographs that are decoded ahead by as many threads as there are by default under the setting."""
    cell = Cell(batch_size=BATCH_SIZE, dtype=setting.dtype)
    with etl.AsyncIterator(_raw(setting, data), PREFETCH_SIZE) as iterator:
        yield _trained(iterator, Training(cell, data))


@contextmanager
def decoding(setting: Setting, data: Data) -> Iterator[Epoch]:
    """Photographs are decoded and resized, and nothing else is done."""
    with _raw(setting, data) as iterator:
        yield lambda: float(run_epoch(iterator, None).samples)


@contextmanager
def new_batches(_: Setting, __: Data) -> Iterator[Epoch]:
    """Records in memory are stacked to a new array for each batch, as a DataLoader does, which is then read."""
    records = list(np.ones(NEW_BATCH_SHAPE, np.float32))

    def epoch() -> float:
        return float(sum(touch(etl.Batch(np.stack(records), None)) for _ in range(NEW_BATCHES)))

    yield epoch


@contextmanager
def parsing_annotations(_: Setting, __: Data) -> Iterator[Epoch]:
    """A small network trains on digits' shapes beside half a million objects, and each batch parses some more."""
    import torch

    text = json.dumps([_annotation(number) for number in range(ANNOTATIONS_A_BATCH)])
    held = [_annotation(number) for number in range(ANNOTATIONS)]
    kept: deque[Any] = deque((json.loads(text) for _ in range(BATCHES_KEPT)), maxlen=BATCHES_KEPT)
    model = etl.models.create("mlp", (1, 28, 28), 10, seed=SEED)
    features, labels = torch.zeros(BATCH_SIZE, 1, 28, 28), torch.zeros(BATCH_SIZE, dtype=torch.int64)

    def epoch() -> float:
        for _ in range(ANNOTATED_BATCHES):
            kept.append(json.loads(text))
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            model.zero_grad()
            etl.runtime.batch_boundary()
        return float(len(held) + len(kept[-1]))

    yield epoch


@contextmanager
def product(setting: Setting, _: Data, backend: str) -> Iterator[Epoch]:
    """Two square matrices are multiplied, once."""
    import torch

    found = etl.backend(backend)
    kind = getattr(torch, setting.dtype)
    ones = torch.ones(PRODUCT_SIDE, PRODUCT_SIDE, dtype=kind, device=found.device)

    def epoch() -> float:
        result = ones @ ones
        found.synchronize()
        return float(result[0, 0])

    yield epoch


def _trained(iterator: Any, trained: Training) -> Epoch:
    def epoch() -> float:
        run_epoch(iterator, trained.step)
        return float(trained.score)

    return epoch


def _raw(setting: Setting, data: Data) -> etl.RawIterator:
    return etl.RawIterator(
        open_source(data), make_pipeline(data), BATCH_SIZE, shuffle=True, seed=SEED, dtype=setting.dtype
    )


def _annotation(number: int) -> dict[str, Any]:
    # The box and the outline are lists of lists: four objects that the collector tracks.
    corner = [number % 640, number % 480]
    return {"id": number, "category": number % 80, "box": [corner, [10.5, 20.5]], "area": 215.25}


def warm_up(setting: Setting, data: Data, backend: str) -> None:
    """What libraries take memory for once, whatever it is that they compute."""
    import torch

    cell = Cell(batch_size=1, dtype=setting.dtype, backend=backend)
    with make_iterator(cell, data) as iterator:
        Training(cell, data).step(next(iter(iterator)))
    small = torch.ones(8, 8, dtype=getattr(torch, setting.dtype))
    _ = small @ small


@dataclass(frozen=True)
class Workload:
    """A workload, and the backend that it computes on."""

    open: Callable[[Setting, Data], AbstractContextManager[Epoch]]
    backend: str = "cpu"


# By the name that `setting.AXES` calls them by.
WORKLOADS = {
    **{on_backend("training", each): Workload(partial(training, backend=each), each) for each in BACKENDS},
    **{on_backend("product", each): Workload(partial(product, backend=each), each) for each in BACKENDS},
    "training beside decoding": Workload(training_beside_decoding),
    "decoding": Workload(decoding),
    "new batches": Workload(new_batches),
    "annotations": Workload(parsing_annotations),
}
