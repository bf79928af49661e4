"""Backend "cpu"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from etl.loading.batch import Batch
from etl.training.backends.tensors import as_tensor, map_batch, torch_dtype


@dataclass(frozen=True)
class Arrived:
    """A batch that is where it is wanted."""

    batch: Batch

    def receive(self) -> Batch:
        """The batch."""
        return self.batch


class CpuBackend:
    """Compute on the CPU. Tensors share the memory of the batch's arrays."""

    name = "cpu"
    device = torch.device("cpu")

    def put(self, batch: Batch) -> Batch:
        """Tensors over the arrays of `batch`; nothing is copied."""
        return map_batch(batch, as_tensor)

    def send(self, batch: Batch) -> Arrived:
        """There is nowhere to go: it has arrived."""
        return Arrived(self.put(batch))

    def allocate(self, nbytes: int) -> np.ndarray:
        """Any memory."""
        return np.empty(nbytes, np.uint8)

    def place(self, model: torch.nn.Module, dtype: str) -> torch.nn.Module:
        """Give the floating parameters of `model` the dtype, in place; returns it."""
        return model.to(device=self.device, dtype=torch_dtype(dtype))

    def synchronize(self) -> None:
        """Nothing to wait for: CPU operations have ended when they return."""
