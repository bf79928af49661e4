"""An observation: measurements of a training on a few batches. Imports torch."""

from __future__ import annotations

import gc
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from etl.doctor.memory_need import MemoryNeed, look_at_memory
from etl.doctor.rank_waits import RankWaits, time_rank_waits
from etl.doctor.setup import ModelSetup, Setup
from etl.doctor.steps import StepTimes, time_steps
from etl.runtime import Collections, CollectionWatch
from etl.runtime.resources import rank_cpus
from etl.watching.diagnosis import Diagnosis, diagnose
from etl.watching.session import Session

TRACED_BATCHES = 2
# Functions that take a tensor out of torch.
LEAVES_TORCH = {torch.Tensor.numpy: "numpy", torch.Tensor.tolist: "tolist", torch.Tensor.__array__: "__array__"}
# Functions that cost nothing on the CPU, but on a device wait for all work before them.
WAITS_FOR_DEVICE = {
    torch.Tensor.item: "item",
    torch.Tensor.__bool__: "bool",
    torch.Tensor.__float__: "float",
    torch.Tensor.__int__: "int",
}
MOVES = (torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to)

# Threads that called each module, and if gradients were switched on, by name of the module.
Calls = dict[str, set[tuple[int, bool]]]


@dataclass(frozen=True)
class ModelTrace:
    """The calls inside a model.

    Attributes
    ----------
    callers : mapping of str to frozenset of int
        Identifiers of the threads that called each module, by name of the module.
    predicting : frozenset of int
        Those of them that called modules only with gradients switched off, as for predictions.
    predicted_records : int
        Records in the last call of the user's model with gradients switched off; 0 if there was none.
    departures : mapping of str to float
        Calls per batch of operations in the forward pass that take tensors off their device or out of torch, by
        "operation in module".
    dense_in_series : int
        Number of dense layers that no path bypasses; see `DenseDepth`.
    """

    callers: Mapping[str, frozenset[int]]
    predicting: frozenset[int]
    predicted_records: int
    departures: Mapping[str, float]
    dense_in_series: int


@dataclass(frozen=True)
class DeviceMemory:
    """Counts of torch's allocator of device memory during the measured batches, and the bytes that it holds then."""

    # Allocations that failed at first, so that the allocator gave all free memory back and asked once more.
    retries: int
    # Segments that the allocator took from the driver.
    new_segments: int
    # Bytes that the allocator holds, and bytes of tensors among them.
    reserved_nbytes: int
    allocated_nbytes: int
    # Of free pieces of segments that are in use otherwise: they cannot be given back, and serve smaller tensors only.
    unusable_nbytes: int

    @classmethod
    def between(cls, before: Mapping[str, int], after: Mapping[str, int]) -> DeviceMemory | None:
        """Return what happened between two results of `torch.cuda.memory_stats`; None if that counts nothing."""
        if "num_alloc_retries" not in after:
            return None

        def grown(name: str) -> int:
            return after.get(name, 0) - before.get(name, 0)

        return cls(
            retries=grown("num_alloc_retries"),
            new_segments=grown("segment.all.allocated"),
            reserved_nbytes=after.get("reserved_bytes.all.current", 0),
            allocated_nbytes=after.get("allocated_bytes.all.current", 0),
            unusable_nbytes=after.get("inactive_split_bytes.all.current", 0),
        )


@dataclass(frozen=True)
class Observation:
    """Measurements of a training on `count` batches."""

    times: StepTimes
    count: int
    # A copy of the first of the largest batches.
    batch: Any
    # Of compute; see `Setup.device`.
    device: torch.device
    # During the measured batches.
    collections: list[Collections]
    # Objects that a full garbage collection visits.
    tracked_objects: int
    full_collection_seconds: float
    # Of this process and its children after these batches.
    memory: MemoryNeed
    # None if the training step is the user's own function.
    trace: ModelTrace | None
    # None if the steps send nothing to other ranks.
    rank_waits: RankWaits | None = None
    # None unless compute is on a CUDA device and torch's own allocator serves it.
    device_memory: DeviceMemory | None = None
    # What the loop over the batches waits for; None if that was not looked at.
    diagnosis: Diagnosis | None = None

    @property
    def etl_seconds(self) -> float:
        """Median wait for a batch."""
        return statistics.median(self.times.etl)

    @property
    def compute_seconds(self) -> float:
        """Median time of a training step, without its waits for other ranks if they could be measured."""
        return statistics.median(self.times.compute) - self.rank_wait_seconds

    @property
    def rank_wait_seconds(self) -> float:
        """Wait for other ranks in a training step; 0 if there is none, or if it could not be measured."""
        share = None if self.rank_waits is None else self.rank_waits.share
        return 0.0 if share is None else share * statistics.median(self.times.compute)

    @property
    def faults(self) -> float:
        """Median number of minor page faults per batch: while the heap still grows, some batches have many."""
        return statistics.median(self.times.faults)


def observe_training(
    user_model: torch.nn.Module | None, setup: Setup, count: int, is_rank: bool = False
) -> Observation:
    """Measure training on `count` batches. Then trace every call inside the model in two more steps on one of them.

    Parameters
    ----------
    user_model : torch.nn.Module or None
        The original of the model in `setup`. Its calls are traced, too, since other threads may use it. None if the
        training step is the user's own function.
    is_rank : bool
        True if there are other ranks, for which a user's step may wait. A model is trained by this rank alone.
    """
    watch = CollectionWatch()
    calls: Calls = {}
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    needs: list[MemoryNeed] = []
    predicted = 0

    def note_prediction(_: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal predicted
        if not torch.is_grad_enabled() and inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].ndim:
            predicted = len(inputs[0])

    @contextmanager
    def around() -> Iterator[None]:
        before.update(_device_stats(setup.device))  # after the batches that warm up
        with watch:
            yield
        after.update(_device_stats(setup.device))
        needs.append(look_at_memory())  # while the iterator's processes still load

    with ExitStack() as tracing:
        if user_model is not None:
            tracing.enter_context(_trace_callers(user_model, calls))
            tracing.callback(user_model.register_forward_pre_hook(note_prediction).remove)
        session = Session()
        session.start()
        tracing.callback(session.stop)
        times, batch = time_steps(setup, count, around, session=session)
        session.stop()
        diagnosis = diagnose(session.times_of(setup.batches), rank_cpus())
        trace = None if setup.of_model is None else _trace(setup.of_model, batch, calls, predicted)
    rank_waits = time_rank_waits(setup) if is_rank and setup.of_model is None else None
    tracked = len(gc.get_objects())
    with CollectionWatch() as full:
        gc.collect()
    return Observation(
        times=times,
        count=count,
        batch=batch,
        device=setup.device,
        collections=watch.take(),
        tracked_objects=tracked,
        full_collection_seconds=sum(each.seconds for each in full.take()),
        memory=needs[0],
        diagnosis=diagnosis,
        trace=trace,
        rank_waits=rank_waits,
        device_memory=DeviceMemory.between(before, after),
    )


def _device_stats(device: torch.device) -> Mapping[str, int]:
    """Return the counts of torch's own allocator for a CUDA device; nothing for the CPU and other allocators."""
    is_counted = device.type == "cuda" and torch.cuda.get_allocator_backend() == "native"
    return torch.cuda.memory_stats(device) if is_counted else {}


def _trace(setup: ModelSetup, batch: Any, calls: Calls, predicted_records: int) -> ModelTrace:
    """Train on `batch` twice and return the calls inside the model."""
    departures: Counter[str] = Counter()
    depth = DenseDepth(setup.model)
    with _trace_callers(setup.model, calls), _trace_departures(setup.model, departures), depth:
        step = setup.make_step()
        for _ in range(TRACED_BATCHES):
            step(batch)
    every = {each for found in calls.values() for each in found}
    return ModelTrace(
        callers={name: frozenset(thread for thread, _ in each) for name, each in calls.items()},
        predicting=frozenset(thread for thread, _ in every if (thread, True) not in every),
        predicted_records=predicted_records,
        departures={name: calls / TRACED_BATCHES for name, calls in departures.items()},
        dense_in_series=depth.layers,
    )


@contextmanager
def _trace_callers(model: torch.nn.Module, calls: Calls) -> Iterator[None]:
    """Record in `calls` which threads call which module of `model`, and if with gradients."""

    def note(name: str, *_: Any) -> None:
        calls.setdefault(name, set()).add((threading.get_ident(), torch.is_grad_enabled()))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(note, name)).remove)
        yield


@contextmanager
def _trace_departures(model: torch.nn.Module, departures: Counter[str]) -> Iterator[None]:
    """Count in `departures` the operations inside `model` that take tensors off their device or out of torch."""
    within: list[str] = []

    def enter(name: str, *_: Any) -> None:
        within.append(name)

    def leave(*_: Any) -> None:
        within.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(enter, name)).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        with _Departures(within, departures):
            yield


class _Departures(TorchFunctionMode):
    """A mode that counts the departures among calls of torch while modules are called: `within`, the innermost last."""

    def __init__(self, within: list[str], departures: Counter[str]) -> None:
        super().__init__()
        self._within = within
        self._departures = departures

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        if self._within:
            departure = LEAVES_TORCH.get(function)
            if departure is None and function in WAITS_FOR_DEVICE and arguments[0].device.type != "cpu":
                departure = WAITS_FOR_DEVICE[function]
            if function in MOVES and isinstance(result, torch.Tensor) and result.device != arguments[0].device:
                departure = f"{arguments[0].device.type} to {result.device.type}"
            if departure is not None:
                self._departures[f"{departure} in {self._within[-1] or 'the model'}"] += 1
        return result


class DenseDepth(TorchFunctionMode):
    """A context manager that counts the dense layers in series between the inputs and outputs of `model`.

    Layers are in series if no path bypasses them. Residual connections, attention and parallel branches are such paths.
    A perceptron of 25 layers has 25 in series; a transformer has only those before and after its blocks. An output that
    functions of torch did not compute from the inputs is ignored.

    Attributes
    ----------
    layers : int
        Number of dense layers in series in the last forward pass; 0 if all outputs were ignored.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.layers = 0
        self._model = model
        self._hooks: list[Any] = []
        # For each tensor computed from the inputs: the fewest dense layers on a path to it.
        self._passed: Any = WeakTensorKeyDictionary()

    def __enter__(self) -> Self:
        self._hooks = [
            self._model.register_forward_pre_hook(self._begin, with_kwargs=True),
            self._model.register_forward_hook(self._end),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        passed = self._layers_before((arguments, keywords))
        if passed:
            self._note(result, min(passed) + (function is torch.nn.functional.linear))
        return result

    def _begin(self, _: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._note((arguments, keywords), 0)

    def _end(self, _: torch.nn.Module, __: tuple[Any, ...], outputs: Any) -> None:
        self.layers = max(self._layers_before(outputs), default=0)

    def _note(self, values: Any, layers: int) -> None:
        for tensor in _tensors(values):
            self._passed[tensor] = layers

    def _layers_before(self, values: Any) -> list[int]:
        return [self._passed[tensor] for tensor in _tensors(values) if tensor in self._passed]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts, tuples and lists."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for each in values.values():
            yield from _tensors(each)
    elif isinstance(values, (tuple, list)):
        for each in values:
            yield from _tensors(each)
