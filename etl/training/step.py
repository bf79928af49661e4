"""The forward pass of a model, one step of training, and the losses of `fit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from etl.loading.batch import Batch
from etl.training.backends import import_torch

if TYPE_CHECKING:
    import torch

Loss = Callable[[Any, Any], Any]


class ForwardPass:
    """A forward pass of a model on a batch of tensors. Returns the output.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on its device. It gets the mask of the features if its `forward` takes `mask`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._takes_mask = _takes_mask(unwrapped(model).forward)

    def __call__(self, batch: Batch) -> Any:
        inputs = batch.features if isinstance(batch.features, tuple) else (batch.features,)
        keywords = {"mask": batch.features_mask} if self._takes_mask and batch.features_mask is not None else {}
        return self._model(*inputs, **keywords)


class TrainingStep:
    """One step of training on a batch of tensors: forward, loss, backward, update. Returns the detached loss.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on its device.
    optimizer : torch.optim.Optimizer
        Updates the model's parameters.
    loss : callable
        `loss(output, labels)`; accepts `mask` if labels have one. Kept as `loss_function`.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
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


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of torch's `DistributedDataParallel`; any other as it is."""
    return model.module if isinstance(model, import_torch().nn.parallel.DistributedDataParallel) else model


def _takes_mask(function: Callable[..., Any]) -> bool:
    # Wrappers of the user's own accept any keyword and pass it on.
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # compiled functions may have none
        return False
    return any(each.name == "mask" or each.kind is each.VAR_KEYWORD for each in parameters)
