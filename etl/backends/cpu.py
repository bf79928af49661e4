"""Backend "cpu"."""

from __future__ import annotations

import torch

from etl.backends.tensors import as_tensor, map_batch, torch_dtype
from etl.batch import Batch


class CpuBackend:
    """Compute on the CPU. Tensors share the memory of the batch's arrays."""

    name = "cpu"
    device = torch.device("cpu")

    def put(self, batch: Batch) -> Batch:
        """Tensors over the arrays of `batch`; nothing is copied."""
        return map_batch(batch, as_tensor)

    def place(self, model: torch.nn.Module, dtype: str) -> torch.nn.Module:
        """Give the floating parameters of `model` the dtype, in place; returns it."""
        return model.to(device=self.device, dtype=torch_dtype(dtype))

    def synchronize(self) -> None:
        """Nothing to wait for: CPU operations have ended when they return."""
