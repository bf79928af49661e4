"""The forward pass of a model, one step of training, and the losses of `fit`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from etl.arguments import describe
from etl.loading.batch import Batch
from etl.training.backends import import_torch

if TYPE_CHECKING:
    import torch

Loss = Callable[[Any, Any], Any]
# In errors of torch: of batch normalisation for a single value, and about dtypes.
NORMALISES = "more than 1 value per channel"
OF_DTYPES = ("type", "not implemented for")
# The label that torch's cross entropy leaves out by default.
IGNORED = -100
NO_LABELS = "the batches have no labels to train on; give as `loss` a function that needs none"
OWN_LOSS = "give a loss of your own (loss=) or a training step (--step)"
OTHER_LOSS = f"convert them, or {OWN_LOSS}"


class Optimizer(Protocol):
    """The part of a torch.optim.Optimizer that a training step needs."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""

    def step(self) -> Any:
        """Update the weights."""


class ForwardPass:
    """A forward pass of a model on a batch of tensors. Returns the output.

    The model gets the mask of the features if its `forward` takes `mask`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._takes_mask = _takes_mask(_innermost(model).forward)

    def __call__(self, batch: Batch) -> Any:
        inputs = batch.features if isinstance(batch.features, tuple) else (batch.features,)
        keywords = {"mask": batch.features_mask} if self._takes_mask and batch.features_mask is not None else {}
        try:
            return self._model(*inputs, **keywords)
        except (ValueError, RuntimeError) as error:
            reason = self._why_not(inputs, batch.records, str(error))
            if reason is None:
                raise
            raise ValueError(reason) from error

    def _why_not(self, inputs: Sequence[torch.Tensor], records: int, error: str) -> str | None:
        """Return why the model does not take `inputs`, if torch's `error` is known to come from them."""
        if records == 1 and NORMALISES in error:
            return (
                f"the model cannot be trained on a batch of one record, since it normalises over each batch ({error}): "
                "choose another batch size (--batch-size), a larger --size, or leave such a batch out (drop_last=True)"
            )
        weights = next((each.dtype for each in self._model.parameters() if each.is_floating_point()), None)
        # Integers last: beside other inputs, they are those of an embedding.
        others = sorted(
            (each.dtype for each in inputs if each.dtype != weights), key=lambda dtype: not dtype.is_floating_point
        )
        if weights is None or not others or not any(word in error for word in OF_DTYPES):
            return None
        how = f"dtype={_name(weights)!r} (--dtype) does"
        if not others[0].is_floating_point:
            how = f"the stage etl.stages.Cast({_name(weights)!r}) does (--dtype leaves integers as they are)"
        return (
            f"the features of a batch have dtype {_name(others[0])}, and the model's weights {_name(weights)} "
            f"({error}): convert the features in the loader, as {how}, or the model"
        )


class TrainingStep:
    """One step of training on a batch of tensors: forward, loss, backward, update. Returns the detached loss.

    `loss(output, labels)` has to accept `mask` if labels have one. It is kept as `loss_function`.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Optimizer, loss: Loss) -> None:
        self._forward = ForwardPass(model)
        self._optimizer = optimizer
        self.loss_function = loss
        self._loss_takes_mask = _takes_mask(getattr(loss, "forward", loss))

    def __call__(self, batch: Batch) -> torch.Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def close(self) -> None:
        """Drop the model. No step follows."""
        del self._forward

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss of the model on a batch of tensors."""
        masked = {} if batch.labels_mask is None else {"mask": batch.labels_mask}
        if masked and not self._loss_takes_mask:
            raise ValueError("labels are padded, and the loss takes no `mask`: use loss(output, labels, mask=None)")
        loss: torch.Tensor = self.loss_function(self._forward(batch), batch.labels, **masked)
        return loss


def cross_entropy(output: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean cross entropy.

    Parameters
    ----------
    output : tensor of shape (batch, classes), or (batch, steps, classes) with a mask
        Logits.
    labels : integer or bool tensor of shape (batch,) or (batch, steps), or with another axis of length 1
        Class numbers, from 0. Or, as for torch, a floating tensor of the shape of `output`: class probabilities.
    mask : tensor of shape (batch, steps), optional
        Nonzero for the steps that count.

    Raises
    ------
    ValueError
        If the output is no tensor; if the labels are neither, or a number is not below the number of classes. On a
        device other than the CPU, torch finds such numbers.
    """
    _check_tensors(output, labels)
    dtype = labels.dtype
    if not labels.is_floating_point() and not labels.is_complex():
        has_axis = labels.ndim == (2 if mask is None else 3) == output.ndim and labels.shape[-1] == 1
        labels = (labels.squeeze(-1) if has_axis else labels).long()
    if mask is not None:
        output, labels = output[mask != 0], labels[mask != 0]
    try:
        loss: torch.Tensor = import_torch().nn.functional.cross_entropy(output, labels)
    except (IndexError, RuntimeError, ValueError) as error:
        reason = _why_not_classes(output, labels, dtype)
        if reason is None:
            raise
        raise ValueError(f"labels of dtype {_name(dtype)} {reason}; {OTHER_LOSS}") from error
    return loss


def _check_tensors(output: Any, labels: Any) -> None:
    tensor = import_torch().Tensor
    if labels is None:
        raise ValueError(NO_LABELS)
    if not isinstance(labels, tensor):
        raise ValueError(f"the labels of a batch are {describe(labels)}, and the loss takes one array; {OTHER_LOSS}")
    if not isinstance(output, tensor):
        raise ValueError(f"the model returns {describe(output)}, and the loss takes one tensor; {OWN_LOSS}")


def _why_not_classes(output: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype) -> str | None:
    """Return why cross entropy does not take `labels`, of `dtype` before integers became int64; None if it does."""
    shapes = f"have shape {tuple(labels.shape)}, and the model's output has shape {tuple(output.shape)}"
    if _name(labels.dtype) != "int64":
        return f"{shapes}: class numbers are integers"
    if labels.shape != (*output.shape[:1], *output.shape[2:]):
        return f"{shapes}: cross entropy takes one class number for each record"
    classes = output.shape[1 if output.ndim > 1 else 0]
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= classes))]
    if not len(wrong):
        return None
    return f"hold {_shown(wrong[0], dtype)}, and the model has {classes} outputs: class numbers are 0 to {classes - 1}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shown(label: torch.Tensor, dtype: torch.dtype) -> int:
    """Return a label whose dtype was `dtype` before the conversion to int64, in which uint64 wraps around."""
    return int(label.item()) % 2**64 if _name(dtype) == "uint64" else int(label.item())


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

    Raises
    ------
    ValueError
        If the output is no tensor, or there are more or fewer predictions than targets.
    """
    _check_tensors(output, labels)
    if output.numel() != labels.numel():
        raise ValueError(
            f"labels of dtype {_name(labels.dtype)} and shape {tuple(labels.shape)} are targets of a regression; the "
            f"model's output has shape {tuple(output.shape)}: class numbers are integers; {OTHER_LOSS}"
        )
    error: torch.Tensor = (output.reshape(labels.shape) - labels) ** 2
    return error.mean() if mask is None else error[mask != 0].mean()


def default_loss(labels: torch.Tensor | None, values: Sequence[int] | None = None) -> Loss:
    """Return the loss for labels like these: the squared error if they are floating, otherwise cross entropy.

    Parameters
    ----------
    values : sequence of int, optional
        The labels of the classes, in ascending order; by default, labels are class numbers.

    Raises
    ------
    ValueError
        If there are no labels, or a target is not finite.
    """
    if labels is None:
        raise ValueError(NO_LABELS)
    if not labels.is_floating_point():
        return cross_entropy if values is None else NumberedClasses(values)
    if not labels.isfinite().all():
        wrong = labels[~labels.isfinite()][0].item()
        raise ValueError(f"labels of dtype {_name(labels.dtype)} hold {wrong}; {OTHER_LOSS}")
    return squared_error


class NumberedClasses:
    """Cross entropy for labels of any integers: the number of a class is its place among `values`."""

    def __init__(self, values: Sequence[int]) -> None:
        torch = import_torch()
        # As in the conversion of uint64 to int64, numbers from 2**63 wrap around.
        wrapped = [(value + 2**63) % 2**64 - 2**63 for value in values]
        self._values, self._numbers = torch.tensor(wrapped, dtype=torch.int64).sort()

    def __call__(self, output: Any, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        torch = import_torch()
        if self._values.device != labels.device:
            self._values, self._numbers = self._values.to(labels.device), self._numbers.to(labels.device)
        dtype, labels = labels.dtype, labels.long()
        places = torch.searchsorted(self._values, labels).clamp_(max=len(self._values) - 1)
        unknown = self._values[places] != labels
        if mask is not None:
            unknown &= mask.reshape(labels.shape) != 0
        if labels.device.type == "cpu" and unknown.any():  # on a device, this would wait for it
            raise ValueError(
                f"labels of dtype {_name(dtype)} hold {_shown(labels[unknown][0], dtype)}, which is not among the "
                f"{len(self._values)} labels of the source; {OTHER_LOSS}"
            )
        return cross_entropy(output, self._numbers[places].masked_fill(unknown, len(self._values)), mask)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of torch's `DistributedDataParallel`, compiled or not; any other as it is."""
    wrapper = import_torch().nn.parallel.DistributedDataParallel
    for each in (model, getattr(model, "_orig_mod", None)):  # the second is that of torch.compile
        if isinstance(each, wrapper):
            module: torch.nn.Module = each.module
            return module
    return model


def _innermost(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of torch's own wrappers, whose `forward` takes any keyword."""
    inner: Any = unwrapped(model)
    inner = getattr(inner, "_orig_mod", inner)
    wrappers = [import_torch().nn.DataParallel]
    if fsdp := sys.modules.get("torch.distributed.fsdp"):
        wrappers.append(fsdp.FullyShardedDataParallel)
    innermost: torch.nn.Module = inner.module if isinstance(inner, tuple(wrappers)) else inner
    return innermost


def _takes_mask(function: Callable[..., Any]) -> bool:
    # A user's wrappers accept any keyword and pass it on.
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # compiled functions may have none
        return False
    return any(each.name == "mask" or each.kind is each.VAR_KEYWORD for each in parameters)
