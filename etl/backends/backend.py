"""What a backend is: where compute runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from etl.batch import Batch

if TYPE_CHECKING:
    import torch


class Sent(Protocol):
    """A batch on its way to the device."""

    def receive(self) -> Batch:
        """The batch of tensors; what is computed with it from now on waits for the copy, the caller does not."""


class Backend(Protocol):
    """A device, the way batches reach it, and the way to wait for it."""

    name: str

    @property
    def device(self) -> torch.device: ...

    def put(self, batch: Batch) -> Batch:
        """The batch with tensors on the device in place of arrays; tensors that are there already stay there."""

    def send(self, batch: Batch) -> Sent:
        """Begin to copy `batch` to the device, beside what it computes."""

    def allocate(self, nbytes: int) -> np.ndarray:
        """Memory from which the device copies fastest: uint8 of shape `(nbytes,)`, with any content."""

    def place(self, model: torch.nn.Module, dtype: str) -> torch.nn.Module:
        """Move `model` to the device and its floating parameters to `dtype`, in place; returns it."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done, so that a clock read after it is honest."""
