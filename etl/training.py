"""`fit`: the training loop, the same text for every iterator."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etl.backends import Backend
from etl.backends import backend as find_backend
from etl.backends.choose import import_torch
from etl.batch import Batch
from etl.iterators import BatchIterator
from etl.listeners import Iteration, Listener

if TYPE_CHECKING:
    import torch

OPTIMIZERS = ("sgd", "adam")
Loss = Callable[[Any, Any], Any]


@dataclass
class FitResult:
    """What a fit did: the loss of every iteration, and the seconds it took, start-up and every wait included."""

    scores: list[float] = field(default_factory=list)
    epochs: int = 0
    samples: int = 0
    seconds: float = 0.0


def fit(
    model: torch.nn.Module,
    iterator: BatchIterator,
    *,
    backend: Backend | str = "auto",
    optimizer: str | torch.optim.Optimizer = "sgd",
    learning_rate: float = 0.01,
    loss: Loss | None = None,
    listeners: Sequence[Listener] = (),
    epochs: int = 1,
) -> FitResult:
    """Train `model` for `epochs` epochs of `iterator`.

    The model is moved to the backend's device and the iterator's dtype, in place. It is called with the batch's
    features (one argument for each input), and with `mask=features_mask` where the batch has one and its `forward`
    takes a `mask`. `optimizer` is "sgd", "adam" or a torch optimizer made by the caller; `loss(output, labels)` is
    cross entropy if None. Where the iterator was given a state to resume, the first epoch is the rest of that one.

    Raises `ValueError` for bad arguments, `RuntimeError` for a backend that is not there, and whatever loading raises,
    at the batch it belongs to. However it ends, no thread of the iterator is left running.
    """
    torch = import_torch()
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    place = find_backend(backend) if isinstance(backend, str) else backend
    place.place(model, iterator.dtype).train()
    update = _make_optimizer(optimizer, model, learning_rate) if isinstance(optimizer, str) else optimizer
    step = TrainingStep(model, update, loss or torch.nn.functional.cross_entropy)
    waits = any(listener.needs_times for listener in listeners)
    result = FitResult()
    scores: list[Any] = []
    started = time.perf_counter()
    for listener in listeners:
        listener.fit_started()
    try:
        for _ in range(epochs):
            _run_epoch(iterator, step, place, listeners, waits, scores, result)
            result.epochs += 1
        place.synchronize()
    finally:
        for listener in listeners:
            listener.fit_ended()
    result.seconds = time.perf_counter() - started
    result.scores = torch.stack(scores).tolist() if scores else []
    return result


class TrainingStep:
    """Forward, loss, backward and update on one batch of tensors; returns the loss, without its graph."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._takes_mask = "mask" in inspect.signature(model.forward).parameters

    def __call__(self, batch: Batch) -> torch.Tensor:
        inputs = batch.features if isinstance(batch.features, tuple) else (batch.features,)
        keywords = {"mask": batch.features_mask} if self._takes_mask and batch.features_mask is not None else {}
        self._optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self._loss(self._model(*inputs, **keywords), batch.labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


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
    ended = time.perf_counter()
    batches = iter(iterator)
    try:
        while True:
            asked = time.perf_counter()
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
    finally:
        # An epoch left by an error would keep loading for as long as the traceback holds it.
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _make_optimizer(name: str, model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    torch = import_torch()
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=learning_rate)  # type: ignore[no-any-return]
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=learning_rate)  # type: ignore[no-any-return]
    raise ValueError(f"unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}, or a torch.optim.Optimizer")
