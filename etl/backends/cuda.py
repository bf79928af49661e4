"""Backend "cuda": batches cross through page-locked buffers, on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from etl.backends.tensors import as_tensor, map_batch, torch_dtype
from etl.batch import Batch

# Two: one buffer is filled while the copy out of the other may still be under way.
BUFFERS = 2


@dataclass
class _Pinned:
    """A page-locked buffer, and the event after which the last copy out of it is done."""

    bytes: torch.Tensor
    copied: torch.cuda.Event


class CudaBackend:
    """Compute on the current CUDA device.

    `put` copies a batch's arrays into pinned memory and from there to the device on a second stream, so that the copy
    runs beside the compute of the batch before; the compute stream waits for it, the caller does not.
    """

    name = "cuda"

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self.device)
        self._rings: dict[int, list[_Pinned]] = {}
        self._turn = 0

    def put(self, batch: Batch) -> Batch:
        """Tensors on the device; the arrays of `batch` may be overwritten as soon as this returns."""
        self._turn = (self._turn + 1) % BUFFERS
        position = iter(range(sum(1 for _ in batch.arrays())))
        with torch.cuda.stream(self._stream):
            moved = map_batch(batch, lambda array: self._copy(array, next(position)))
        compute = torch.cuda.current_stream(self.device)
        compute.wait_stream(self._stream)
        for tensor in moved.arrays():
            # The memory was allocated on the copy stream; the allocator must not reuse it before compute is done.
            tensor.record_stream(compute)
        return moved

    def place(self, model: torch.nn.Module, dtype: str) -> torch.nn.Module:
        """Move `model` to the device and its floating parameters to `dtype`, in place; returns it."""
        return model.to(device=self.device, dtype=torch_dtype(dtype))

    def synchronize(self) -> None:
        """Wait until all streams of the device are idle."""
        torch.cuda.synchronize(self.device)

    def _copy(self, array: np.ndarray, position: int) -> torch.Tensor:
        source = as_tensor(array)
        pinned = self._buffer(position, array.nbytes)
        pinned.copied.synchronize()
        staged = pinned.bytes[: array.nbytes].view(source.dtype).view(source.shape)
        staged.copy_(source)
        moved = staged.to(self.device, non_blocking=True)
        pinned.copied.record(self._stream)
        return moved

    def _buffer(self, position: int, nbytes: int) -> _Pinned:
        ring = self._rings.setdefault(position, [])
        if len(ring) < BUFFERS or ring[self._turn].bytes.nbytes < nbytes:
            # A buffer that is replaced must have been read out before its memory goes.
            torch.cuda.synchronize(self.device)
            ring[:] = [
                _Pinned(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())
                for _ in range(BUFFERS)
            ]
        return ring[self._turn]
