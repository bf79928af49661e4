"""`fit`: one training loop for every loader."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etl.arguments import describe, whole_number
from etl.iterators import BatchIterator
from etl.iterators.foreign import as_iterator, is_exhausted_by_iterating
from etl.iterators.iterator import close_epoch
from etl.loading.batch import Batch, as_batch
from etl.runtime import Audit, GcPolicy, HeapPolicy, ThreadPolicy, batch_boundary
from etl.runtime.boundaries import announced_by_loop
from etl.training.backends import Backend, import_torch
from etl.training.backends import backend as find_backend
from etl.training.listeners import Iteration, Listener

if TYPE_CHECKING:
    import torch

Loss = Callable[[Any, Any], Any]
_END: Any = object()
_ITERABLE_AGAIN = (
    "an iterator, such as a generator, ends once and for all: pass an iterable that begins again, such as a "
    "DataLoader, a list or an object whose __iter__ is a generator function"
)


@dataclass
class FitResult:
    """The results of `fit`.

    Attributes
    ----------
    scores : list of float
        Loss of every iteration.
    epochs : int
        Number of epochs.
    samples : int
        Number of samples trained on, including those that a shard repeats.
    seconds : float
        Duration, including start-up and every wait.
    settings : list of Audit
        One report for each runtime setting that was asked for.
    """

    scores: list[float] = field(default_factory=list)
    epochs: int = 0
    samples: int = 0
    seconds: float = 0.0
    settings: list[Audit] = field(default_factory=list)


def fit(
    model: torch.nn.Module,
    iterator: BatchIterator | Iterable[Any],
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
    """Train a model.

    Parameters
    ----------
    model : torch.nn.Module
        Moved to the backend's device and the iterator's dtype, if it names one, in place. It is called with the
        batch's features, one argument for each input; and, if the batch has a `features_mask` and `forward` accepts
        `mask` or any keyword, with `mask=features_mask` (a tuple for several inputs).
    iterator : BatchIterator or iterable of batches
        Yields the batches of one epoch each time it is iterated: an iterator of etl; or any other iterable, such as a
        torch DataLoader. See the notes on both.
    backend : Backend or str
        "auto", "cpu" or "cuda".
    optimizer : str or torch.optim.Optimizer
        "sgd", "adam", or an optimizer made by the caller.
    learning_rate : float, optional
        For "sgd" and "adam"; 0.01 by default.
    loss : callable, optional
        `loss(output, labels)`, a scalar tensor; cross entropy by default. If the batch has a `labels_mask`, it is
        called with `mask=labels_mask`. Cross entropy is then the mean over the steps that are data, for outputs of
        shape `(batch, steps, classes)`.
    listeners : sequence of Listener
        Called after every iteration.
    epochs : int
        Number of epochs.
    gc : GcPolicy or str, optional
        Garbage collection during the fit, such as "freeze".
    heap : HeapPolicy or str, optional
        The allocator during the fit, such as "retain".
    threads : ThreadPolicy or int, optional
        Compute threads during the fit.

    Returns
    -------
    FitResult
        Losses, counts, duration, and an audit of each runtime setting. The audits are not part of the duration.

    Raises
    ------
    TypeError
        If `iterator` cannot be iterated.
    ValueError
        If an argument is invalid; if there are several epochs and the iterator is exhausted after one; if a batch has
        another form than those in the notes; if an epoch has no batches; if labels have a mask and the loss does not
        accept `mask`.
    RuntimeError
        If the backend is not available.

    Warns
    -----
    UserWarning
        If a runtime setting was not in force, with what to do about it.

    Notes
    -----
    An error while loading is raised at the batch that it belongs to. No thread of the iterator is left running, even
    after an error.

    If a state was loaded into an iterator of etl, the first epoch is the rest of the one in which the state was taken.
    Records that a shard repeats (`Batch.repeated`) are trained on and counted like any other.

    A batch of another iterable is an `etl.Batch`, a pair of features and labels, or a mapping with keys such as "image"
    and "label". Features and labels are tensors or arrays, or a tuple or list of them. Tensors that are on the device
    already are not copied.

    As the training loop, `fit` passes the number of each epoch to `set_epoch` of the iterable. If it has none, the
    number is passed to its sampler, batch sampler and data set, so that a `DistributedSampler` shuffles anew. The first
    number is the `epoch` of one of these, or 0; after the last epoch it is set to the next one.
    """
    torch = import_torch()
    epochs = whole_number("epochs", epochs, least=1)
    source = as_iterator(iterator)
    if epochs > 1 and is_exhausted_by_iterating(iterator):
        raise ValueError(f"epochs is {epochs}, but {describe(iterator)} is exhausted after one; {_ITERABLE_AGAIN}")
    make_optimizer = _optimizer_maker(optimizer, learning_rate)
    policies = _policies(gc, heap, threads)
    chosen = find_backend(backend) if isinstance(backend, str) else backend
    place_model(model, source, chosen).train()
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
                _run_epoch(source, step, chosen, listeners, waits, scores, result)
                result.epochs += 1
            chosen.synchronize()
        result.seconds = time.perf_counter() - started
        result.settings = [policy.audit() for policy in policies]
    result.scores = torch.stack(scores).tolist() if scores else []
    for audit in result.settings:
        if audit.is_inert:
            warnings.warn(f"a runtime setting is not in force: {audit.alarm}", stacklevel=2)
    return result


def place_model(model: torch.nn.Module, iterator: Any, backend: Backend) -> torch.nn.Module:
    """Move `model` to the device in place, in the dtype of `iterator` if it names one; return the model.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    iterator : BatchIterator
        What the model will be trained on.
    backend : Backend
        The device.
    """
    dtype = getattr(iterator, "dtype", None)
    return model.to(backend.device) if dtype is None else backend.place(model, dtype)


class TrainingStep:
    """One step of training on a batch of tensors: forward, loss, backward, update. Returns the detached loss.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on its device.
    optimizer : torch.optim.Optimizer
        Updates the model's parameters.
    loss : callable
        `loss(output, labels)`; accepts `mask` if labels have one.
    """

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
    """Return the mean cross entropy.

    Parameters
    ----------
    output : tensor of shape (batch, classes), or (batch, steps, classes) with a mask
        Logits.
    labels : integer tensor of shape (batch,) or (batch, steps)
        Class numbers.
    mask : tensor of shape (batch, steps), optional
        Nonzero for the steps that count.
    """
    entropy = import_torch().nn.functional.cross_entropy
    loss: torch.Tensor = entropy(output, labels) if mask is None else entropy(output[mask != 0], labels[mask != 0])
    return loss


def squared_error(output: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean squared error.

    Parameters
    ----------
    output : tensor
        Predictions, reshaped to the shape of `labels`.
    labels : tensor of any shape
        Targets.
    mask : tensor of the shape of `labels`, optional
        Nonzero for the values that count.
    """
    error: torch.Tensor = (output.reshape(labels.shape) - labels) ** 2
    return error.mean() if mask is None else error[mask != 0].mean()


def _takes_mask(function: Callable[..., Any]) -> bool:
    # Wrappers such as DistributedDataParallel accept any keyword and pass it on.
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
    epoch, before = iterator.epoch, len(scores)
    # Calling iter() counts as loading, because many iterators read their first batches there.
    asked = ended = time.perf_counter()
    batches: Any = iter(iterator)
    try:
        while True:
            with announced_by_loop():
                item = next(batches, _END)
            loaded = time.perf_counter()
            if item is _END:
                break
            batch = as_batch(item)
            del item
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
        close_epoch(batches, iterator)
    if len(scores) == before:
        raise ValueError(f"epoch {epoch} has no batches, so there is nothing to train on; {_ITERABLE_AGAIN}")


def _policies(
    gc: GcPolicy | str | None, heap: HeapPolicy | str | None, threads: ThreadPolicy | int | None
) -> list[GcPolicy | HeapPolicy | ThreadPolicy]:
    # Garbage collection comes last, so that objects made by the other policies are frozen, too.
    made = (
        ThreadPolicy(threads) if isinstance(threads, int) else threads,
        HeapPolicy(heap) if isinstance(heap, str) else heap,
        GcPolicy(gc) if isinstance(gc, str) else gc,
    )
    return [policy for policy in made if policy is not None]


def _optimizer_maker(
    optimizer: str | torch.optim.Optimizer, learning_rate: float | None
) -> Callable[[torch.nn.Module], torch.optim.Optimizer]:
    """Return a function that makes the optimizer once the model is on its device.

    Arguments are checked now, before the model is moved.
    """
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
