"""What the doctor saw while a model was trained on a few batches. Loads torch."""

from __future__ import annotations

import gc
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from etl.doctor.depth import DenseDepth
from etl.doctor.setup import Setup, copy_batch
from etl.doctor.steps import StepTimes, time_steps
from etl.loading.batch import Batch
from etl.measuring.noise import NoiseWatch
from etl.runtime import Collections, CollectionWatch

WATCHED_BATCHES = 2
# Functions that take a tensor out of torch.
LEAVES_TORCH = {torch.Tensor.numpy: "numpy", torch.Tensor.tolist: "tolist", torch.Tensor.__array__: "__array__"}
# On the CPU a value is known at once; a device has to finish everything before it.
WAITS_FOR_DEVICE = {
    torch.Tensor.item: "item",
    torch.Tensor.__bool__: "bool",
    torch.Tensor.__float__: "float",
    torch.Tensor.__int__: "int",
}
MOVES = (torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to)


@dataclass(frozen=True)
class Seen:
    """`times` of `count` batches; `collections` of the garbage collector meanwhile, `tracked_objects` that a full one
    walks and the seconds that it takes; `batch_nbytes` is the size of a batch.

    `callers`: for each module that was called the threads that did. `departures`: what took tensors off the device or
    out of torch during forward passes, as `operation in module`, and how often in a batch. `dense_in_series`: the dense
    layers that no path leads around.
    """

    times: StepTimes
    count: int
    batch: Batch
    collections: list[Collections]
    tracked_objects: int
    full_collection_seconds: float
    batch_nbytes: int
    steal: float
    others: float
    callers: Mapping[str, frozenset[int]]
    departures: Mapping[str, float]
    dense_in_series: int

    @property
    def etl_seconds(self) -> float:
        """The wait for a batch, the median."""
        return statistics.median(self.times.etl)

    @property
    def compute_seconds(self) -> float:
        """A training step, the median."""
        return statistics.median(self.times.compute)

    @property
    def faults(self) -> float:
        """Minor page faults of a batch, the median: while a heap still grows, some batches have many."""
        return statistics.median(self.times.faults)


def watch_training(user_model: torch.nn.Module, setup: Setup, count: int) -> Seen:
    """Train on `count` batches against the clock, and on two more with every call watched. `user_model`, of which
    `setup` has a copy, is watched all the while: other threads may call it.
    """
    watch = CollectionWatch()
    noise = NoiseWatch()
    callers: dict[str, set[int]] = {}

    def around() -> ExitStack:
        stack = ExitStack()
        for each in (noise, watch):
            stack.enter_context(each)
        return stack

    with _calls_noted(user_model, callers):
        times, last = time_steps(setup, count, around)
        batch = copy_batch(last)
        departures: Counter[str] = Counter()
        depth = DenseDepth(setup.model)
        with _calls_noted(setup.model, callers), _departures_noted(setup.model, departures), depth:
            step = setup.make_step()
            for _ in range(WATCHED_BATCHES):
                step(batch)
    tracked = len(gc.get_objects())
    full = CollectionWatch()
    with full:
        gc.collect()
    return Seen(
        times=times,
        count=count,
        batch=batch,
        collections=watch.take(),
        tracked_objects=tracked,
        full_collection_seconds=sum(each.seconds for each in full.take()),
        batch_nbytes=batch.nbytes,
        steal=noise.steal,
        others=noise.other_processes,
        callers={name: frozenset(threads) for name, threads in callers.items()},
        departures={name: calls / WATCHED_BATCHES for name, calls in departures.items()},
        dense_in_series=depth.layers,
    )


@contextmanager
def _calls_noted(model: torch.nn.Module, callers: dict[str, set[int]]) -> Iterator[None]:
    """Note in `callers` which threads call which module of `model`."""

    def note(name: str, *_: Any) -> None:
        callers.setdefault(name, set()).add(threading.get_ident())

    handles = [module.register_forward_pre_hook(partial(note, name)) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _departures_noted(model: torch.nn.Module, departures: Counter[str]) -> Iterator[None]:
    """Note in `departures` what takes tensors off their device or out of torch, while a module is called."""
    within: list[str] = []

    def enter(name: str, *_: Any) -> None:
        within.append(name)

    def leave(*_: Any) -> None:
        within.pop()

    handles = []
    for name, module in model.named_modules():
        handles += [
            module.register_forward_pre_hook(partial(enter, name)),
            module.register_forward_hook(leave, always_call=True),
        ]
    try:
        with _Departures(within, departures):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Departures(TorchFunctionMode):
    """Sees every function of torch that is called, and what it returns."""

    def __init__(self, within: list[str], departures: Counter[str]) -> None:
        super().__init__()
        self._within = within
        self._departures = departures

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        if self._within:
            what = LEAVES_TORCH.get(function)
            if what is None and function in WAITS_FOR_DEVICE and arguments[0].device.type != "cpu":
                what = WAITS_FOR_DEVICE[function]
            if function in MOVES and isinstance(result, torch.Tensor) and result.device != arguments[0].device:
                what = f"{arguments[0].device.type} to {result.device.type}"
            if what is not None:
                self._departures[f"{what} in {self._within[-1] or 'the model'}"] += 1
        return result
