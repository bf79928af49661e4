"""`fit`: the training loop, the same text for every iterator."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etl.arguments import whole_number
from etl.iterators import BatchIterator
from etl.loading.batch import Batch
from etl.runtime import Audit, GcPolicy, HeapPolicy, ThreadPolicy, batch_boundary
from etl.runtime.boundaries import announced_by_loop
from etl.training.backends import Backend
from etl.training.backends import backend as find_backend
from etl.training.backends.selection import import_torch
from etl.training.listeners import Iteration, Listener

if TYPE_CHECKING:
    import torch

Loss = Callable[[Any, Any], Any]


@dataclass
class FitResult:
    """Results of a fit: the loss of every iteration, the samples it trained on, repeated ones included, the seconds it
    took, start-up and every wait included, and what became of the runtime settings that were asked for.
    """

    scores: list[float] = field(default_factory=list)
    epochs: int = 0
    samples: int = 0
    seconds: float = 0.0
    settings: list[Audit] = field(default_factory=list)


def fit(
    model: torch.nn.Module,
    iterator: BatchIterator,
    *,
    backend: Backend | str = "auto",
    optimizer: str | torch.optim.Optimizer = "sgd",
    learning_rate: float | None = None,
    loss: Loss | None = None,
    listeners: Sequence[Listener] = (),
    epochs: int = 1,
    gc: GcPolicy | str | None = None,
    heap: HeapPolicy | str | None = None,
    threads: ThreadPolicy | int | None = None,
) -> FitResult:
    """Train `model` for `epochs` epochs of `iterator`.

    The model is moved to the backend's device and the iterator's dtype, in place. It is called with the batch's
    features (one argument for each input), and with `mask=features_mask` (a tuple for several inputs) where the batch
    has one and its `forward` takes a `mask` or any keyword. `optimizer` is "sgd", "adam", both with `learning_rate`
    (0.01 if None), or a torch optimizer made by the caller, which has its own. `loss(output, labels)` is cross entropy
    if None. Where labels have a mask it is called with `mask=labels_mask`; cross entropy then is the mean over the
    steps that are data, of outputs `(batch, steps, classes)`. Where the iterator was given a state to resume, the first
    epoch is the rest of that one. Records that a shard repeats (`Batch.repeated`) are trained on and counted like any
    other.

    `gc`, `heap` and `threads` are policies of `etl.runtime`, or what makes one ("freeze", "retain", 2), and in force
    until it returns. They are audited at the end, outside of `seconds`, and a `UserWarning` says which was not in
    force, and what to do.

    Raises `ValueError` for bad arguments and for a loss that takes no `mask` where labels have one, `RuntimeError` for
    a backend that is not there, and whatever loading raises, at the batch it belongs to. However it ends, no thread of
    the iterator is left running.
    """
    torch = import_torch()
    epochs = whole_number("epochs", epochs, least=1)
    make_optimizer = _optimizer_maker(optimizer, learning_rate)
    policies = _policies(gc, heap, threads)
    place = find_backend(backend) if isinstance(backend, str) else backend
    place.place(model, iterator.dtype).train()
    update = make_optimizer(model)
    step = TrainingStep(model, update, loss or cross_entropy)
    waits = any(listener.needs_times for listener in listeners)
    result = FitResult()
    scores: list[Any] = []
    started = time.perf_counter()
    with ExitStack() as in_force:
        for policy in policies:
            in_force.enter_context(policy)
        with ExitStack() as started_listeners:
            for listener in listeners:
                listener.fit_started()
                started_listeners.callback(listener.fit_ended)
            for _ in range(epochs):
                _run_epoch(iterator, step, place, listeners, waits, scores, result)
                result.epochs += 1
            place.synchronize()
        result.seconds = time.perf_counter() - started
        result.settings = [policy.audit() for policy in policies]
    result.scores = torch.stack(scores).tolist() if scores else []
    for audit in result.settings:
        if audit.is_inert:
            warnings.warn(f"a runtime setting is not in force: {audit.alarm}", stacklevel=2)
    return result


class TrainingStep:
    """Forward, loss, backward and update on one batch of tensors; returns the loss, without its graph."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._model_takes_mask = _takes_mask(model.forward)
        self._loss_takes_mask = _takes_mask(getattr(loss, "forward", loss))

    def __call__(self, batch: Batch) -> torch.Tensor:
        inputs = batch.features if isinstance(batch.features, tuple) else (batch.features,)
        keywords = {"mask": batch.features_mask} if self._model_takes_mask and batch.features_mask is not None else {}
        masked = {} if batch.labels_mask is None else {"mask": batch.labels_mask}
        if masked and not self._loss_takes_mask:
            raise ValueError("labels are padded, and the loss takes no `mask`: use loss(output, labels, mask=None)")
        self._optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self._loss(self._model(*inputs, **keywords), batch.labels, **masked)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def cross_entropy(output: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The mean cross entropy of `output`, `(batch, classes)`; with `mask`, `(batch, steps)`, over the steps of
    `(batch, steps, classes)` where it is not 0.
    """
    entropy = import_torch().nn.functional.cross_entropy
    loss: torch.Tensor = entropy(output, labels) if mask is None else entropy(output[mask != 0], labels[mask != 0])
    return loss


def squared_error(output: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The mean squared error; over the steps where `mask` is not 0."""
    error: torch.Tensor = (output.reshape(labels.shape) - labels) ** 2
    return error.mean() if mask is None else error[mask != 0].mean()


def _takes_mask(function: Callable[..., Any]) -> bool:
    # Wrappers, such as DistributedDataParallel, take any keyword and pass it on.
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # compiled functions may have none
        return False
    return any(each.name == "mask" or each.kind is each.VAR_KEYWORD for each in parameters)


def _run_epoch(
    iterator: BatchIterator,
    step: TrainingStep,
    backend: Backend,
    listeners: Sequence[Listener],
    waits: bool,
    scores: list[Any],
    result: FitResult,
) -> None:
    epoch = iterator.epoch
    # Starting the iterator is loading too: many read their first batches there.
    asked = ended = time.perf_counter()
    batches: Any = iter(iterator)
    try:
        while True:
            with announced_by_loop():
                batch = next(batches, None)
            loaded = time.perf_counter()
            if batch is None:
                break
            score = step(backend.put(batch))
            if waits:
                backend.synchronize()
            done = time.perf_counter()
            scores.append(score)
            result.samples += len(batch)
            iteration = Iteration(
                number=len(scores) - 1,
                epoch=epoch,
                samples=len(batch),
                etl_seconds=loaded - asked,
                compute_seconds=done - loaded,
                seconds=done - ended,
                score=score,
                device=str(backend.device),
            )
            ended = done
            for listener in listeners:
                listener.iteration_done(iteration)
            batch_boundary()
            asked = time.perf_counter()
    finally:
        # An epoch left by an error would keep loading for as long as the traceback holds it. An iterator that is its
        # own epoch stays open, for the next.
        close = getattr(batches, "close", None)
        if close is not None and batches is not iterator:
            close()


def _policies(
    gc: GcPolicy | str | None, heap: HeapPolicy | str | None, threads: ThreadPolicy | int | None
) -> list[GcPolicy | HeapPolicy | ThreadPolicy]:
    # That of the garbage collector last: what the others make is alive when objects are frozen.
    made = (
        ThreadPolicy(threads) if isinstance(threads, int) else threads,
        HeapPolicy(heap) if isinstance(heap, str) else heap,
        GcPolicy(gc) if isinstance(gc, str) else gc,
    )
    return [policy for policy in made if policy is not None]


def _optimizer_maker(
    optimizer: str | torch.optim.Optimizer, learning_rate: float | None
) -> Callable[[torch.nn.Module], torch.optim.Optimizer]:
    """What makes the optimizer of a model once it is in place; raises `ValueError` before anything was moved."""
    if not isinstance(optimizer, str):
        if learning_rate is not None:
            raise ValueError(
                f"learning_rate={learning_rate} has no effect on an optimizer that has its own; leave it out"
            )
        return lambda _: optimizer
    torch = import_torch()
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    if optimizer not in kinds:
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(kinds)}, or a torch.optim.Optimizer")
    rate = 0.01 if learning_rate is None else learning_rate
    return lambda model: kinds[optimizer](model.parameters(), lr=rate)
