"""The measuring process in which settings are tried: its workloads, and how it handles requests.

The first request is `{"data": ..., "allocator": ...}`. A request `{"workload", "setting", "cpus"}` opens a session in a
forked process, which answers with an `OpenedArm`. Each further request `{"seconds": ...}` is a turn: epochs for about
this long.

The result of an epoch, its score, is the same under all settings, except for other dtypes, whose arithmetic differs.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import etl
from benchmarks.cells import BACKENDS, Cell
from benchmarks.measuring.arrays import touch
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.process_tree import PeakMemory
from benchmarks.measuring.same_work import DoneWork
from benchmarks.measuring.server import Answer, OpenSession, Request, Turn
from benchmarks.measuring.turns import OpenedArm, seconds_of, settle_on
from benchmarks.servers import import_everything
from benchmarks.settings.setting import DEFAULT, Setting, on_backend
from benchmarks.workload import SEED, CellCompute, Data, make_iterator, make_pipeline, open_source

# Does one epoch and returns its result.
Epoch = Callable[[], float]

# After a turn, the OpenMP threads of the other arm keep spinning for a moment.
SETTLING_SECONDS = 0.005
BATCH_SIZE = 32
PREFETCH_SIZE = 2
# The documents' example of a batch that is allocated anew each time: 38 MB.
NEW_BATCH_SHAPE = (64, 3, 224, 224)
PRODUCT_SIDE = 512
# Annotations of images, as in a data set for detection, are dictionaries with lists: half a million objects, which the
# collector tracks for as long as the training lasts. The annotations of each batch are parsed, and kept for a while.
ANNOTATIONS = 125_000
ANNOTATIONS_A_BATCH = 64 * 20
ANNOTATED_BATCHES = 5
BATCHES_KEPT = 50


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything; raise `RuntimeError` if the allocator was not loaded."""
    allocator = request["allocator"]
    # The dynamic linker continues without a library that it does not find.
    if allocator != DEFAULT and f"lib{allocator}." not in Path("/proc/self/maps").read_text():
        raise RuntimeError(f"the allocator {allocator} is not in this process")
    import_everything()
    return {}, partial(_open_session, Data.from_json(request["data"]))


@contextmanager
def _open_session(data: Data, request: Request) -> Iterator[tuple[Answer, Turn]]:
    settle_on(request["cpus"])
    is_one_thread = len(request["cpus"]) == 1
    workload, setting = WORKLOADS[request["workload"]], Setting.from_json(request["setting"])
    warm_up(setting, data, workload.backend)
    before = PeakMemory()
    before.look()
    with (
        etl.runtime.HeapPolicy(setting.heap),
        etl.runtime.ThreadPolicy(setting.threads) if setting.threads else nullcontext(),
        nullcontext() if setting.device_memory == DEFAULT else etl.runtime.DeviceMemoryPolicy(setting.device_memory),
        ExitStack() as stack,
    ):
        with PeakMemory() as peak:  # sampling takes time, so it is not done in turns
            epoch = workload.open(setting, data, stack)
            stack.enter_context(etl.runtime.GcPolicy(setting.garbage_collection))
            result = epoch()
        started = time.perf_counter()
        epoch()
        seconds = time.perf_counter() - started

        def turn(request: Request) -> Answer:
            epochs = max(1, round(request["seconds"] / seconds))
            time.sleep(SETTLING_SECONDS)
            etl.runtime.batch_boundary()  # a window of the collector does not include the wait
            return {"seconds": seconds_of(lambda: [epoch() for _ in range(epochs)], is_one_thread) / epochs}

        memory = _taken(peak, before, workload.backend)
        yield OpenedArm(DoneWork(score=result), {"epoch": seconds}, memory).to_json(), turn


def _taken(peak: PeakMemory, before: PeakMemory, backend: str) -> int:
    """Return the peak bytes of the device that computes; on the CPU those above what was taken `before`."""
    if backend == "cuda":
        import torch

        return int(torch.cuda.max_memory_reserved())  # with what the allocator keeps, which others cannot have
    return max(1, peak.nbytes - before.nbytes)


def warm_up(setting: Setting, data: Data, backend: str) -> None:
    """Train on one record, so that libraries have allocated the memory that they need once."""
    import torch

    cell = Cell(batch_size=1, dtype=setting.dtype, backend=backend)
    with make_iterator(cell, data) as iterator:
        CellCompute(cell, data).step(next(iter(iterator)))
    small = torch.ones(8, 8, dtype=getattr(torch, setting.dtype))
    _ = small @ small


def training_alone(setting: Setting, data: Data, stack: ExitStack, backend: str = "cpu") -> Epoch:
    """Train the small residual network on presaved photographs."""
    cell = Cell(batch_size=BATCH_SIZE, dtype=setting.dtype, backend=backend)
    return _trained(stack.enter_context(make_iterator(cell, data)), CellCompute(cell, data))


def training_beside_decoding(setting: Setting, data: Data, stack: ExitStack) -> Epoch:
    """Train on photographs that are decoded ahead, by the default number of threads under the setting."""
    cell = Cell(batch_size=BATCH_SIZE, dtype=setting.dtype)
    iterator = stack.enter_context(etl.AsyncIterator(_raw(setting, data), PREFETCH_SIZE))
    return _trained(iterator, CellCompute(cell, data))


def decoding(setting: Setting, data: Data, stack: ExitStack) -> Epoch:
    """Decode and resize photographs, and do nothing else."""
    iterator = stack.enter_context(_raw(setting, data))
    return lambda: float(run_epoch(iterator, None).samples)


def new_batches(*_: object) -> Epoch:
    """Stack records in memory to a new array for each batch, as a DataLoader does, and read it."""
    records = list(np.ones(NEW_BATCH_SHAPE, np.float32))
    return lambda: float(touch(etl.Batch(np.stack(records), None)))


def parsing_annotations(*_: object) -> Epoch:
    """Train a small network beside half a million objects, and parse some more for each batch."""
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

    return epoch


def product(setting: Setting, _: Data, __: ExitStack, backend: str = "cpu") -> Epoch:
    """Multiply two square matrices of the setting's dtype, once."""
    import torch

    found = etl.backend(backend)
    kind = getattr(torch, setting.dtype)
    ones = torch.ones(PRODUCT_SIDE, PRODUCT_SIDE, dtype=kind, device=found.device)

    def epoch() -> float:
        result = ones @ ones
        found.synchronize()
        return float(result[0, 0])

    return epoch


def _trained(iterator: Any, trained: CellCompute) -> Epoch:
    def epoch() -> float:
        run_epoch(iterator, trained.step)
        return trained.score

    return epoch


def _raw(setting: Setting, data: Data) -> etl.RawIterator:
    return etl.RawIterator(
        open_source(data), make_pipeline(data), BATCH_SIZE, shuffle=True, seed=SEED, dtype=setting.dtype
    )


def _annotation(number: int) -> dict[str, Any]:
    # A dictionary, and a box of three lists: four objects that the collector tracks.
    corner = [number % 640, number % 480]
    return {"id": number, "category": number % 80, "box": [corner, [10.5, 20.5]], "area": 215.25}


@dataclass(frozen=True)
class SettingWork:
    """A workload: a function that returns its epoch, and the backend that it computes on.

    What the function enters into its `ExitStack` is open for as long as the session.
    """

    open: Callable[[Setting, Data, ExitStack], Epoch]
    backend: str = "cpu"


# By the names in `setting.AXES`.
WORKLOADS = {
    **{on_backend("training", each): SettingWork(partial(training_alone, backend=each), each) for each in BACKENDS},
    **{on_backend("product", each): SettingWork(partial(product, backend=each), each) for each in BACKENDS},
    "training beside decoding": SettingWork(training_beside_decoding),
    "decoding": SettingWork(decoding),
    "new batches": SettingWork(new_batches),
    "annotations": SettingWork(parsing_annotations),
}
