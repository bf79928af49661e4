"""What a backend is: where compute runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from etl.batch import Batch

if TYPE_CHECKING:
    import torch


class Backend(Protocol):
    """A device, the way batches reach it, and the way to wait for it."""

    name: str

    @property
    def device(self) -> torch.device: ...

    def put(self, batch: Batch) -> Batch:
        """The batch with tensors on the device in place of arrays."""

    def place(self, model: torch.nn.Module, dtype: str) -> torch.nn.Module:
        """Move `model` to the device and its floating parameters to `dtype`, in place; returns it."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done, so that a clock read after it is honest."""
