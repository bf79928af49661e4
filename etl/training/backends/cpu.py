"""The backend "cpu"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from etl.loading.batch import Batch, as_batch
from etl.training.backends.tensors import as_tensor, map_batch, torch_dtype


@dataclass(frozen=True)
class Arrived:
    """A batch that is on its device already."""

    batch: Batch

    def receive(self) -> Batch:
        """Return the batch."""
        return self.batch


class CpuBackend:
    """Compute on the CPU. Tensors share the memory of the batch's arrays."""

    name = "cpu"
    device = torch.device("cpu")

    def put(self, batch: Any) -> Batch:
        """Return tensors that share the memory of the arrays of `batch`, which has any form that `etl.fit` accepts."""
        return map_batch(as_batch(batch), as_tensor)

    def send(self, batch: Batch) -> Arrived:
        """Return the batch as already arrived, since there is nothing to copy."""
        return Arrived(self.put(batch))

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate ordinary memory: uint8 of shape `(nbytes,)`."""
        return np.empty(nbytes, np.uint8)

    def place(self, model: torch.nn.Module, dtype: str | None) -> torch.nn.Module:
        """Convert the floating-point parameters of `model` to `dtype`, in place; return the model."""
        return model.to(device=self.device, dtype=None if dtype is None else torch_dtype(dtype))

    def synchronize(self) -> None:
        """Do nothing: CPU operations are done when they return."""
