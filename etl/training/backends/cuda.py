"""The backend "cuda": batches are copied through page-locked buffers, on a separate stream."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from etl.loading.batch import Batch, as_batch
from etl.training.backends.tensors import as_tensor, map_batch, torch_dtype

# One buffer is filled while the copy out of the other may still be running.
BUFFERS = 2


@dataclass
class _Pinned:
    """A page-locked buffer, and the event recorded after the last copy out of it."""

    bytes: torch.Tensor
    copied: torch.cuda.Event


@dataclass(frozen=True)
class _Sent:
    """A batch on its way to the device, and the event recorded after its copy."""

    batch: Batch
    copied: torch.cuda.Event
    device: torch.device

    def receive(self) -> Batch:
        """Make the current stream wait for the copy, and return the batch."""
        compute = torch.cuda.current_stream(self.device)
        compute.wait_event(self.copied)
        for tensor in self.batch.arrays():
            # The memory was allocated on the copy stream; the allocator must not reuse it before compute is done.
            tensor.record_stream(compute)
        return self.batch


class CudaBackend:
    """Compute on a CUDA device; by default on the current one.

    Notes
    -----
    `put` copies a batch's arrays into pinned memory, and from there to the device on a second stream. The compute
    stream waits for the copy; the caller does not. `send` begins the copy before the batch is needed, so that it runs
    during the compute of the previous batch. It copies directly out of arrays whose memory is from `allocate`.
    """

    name = "cuda"

    def __init__(self, index: int | None = None) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self._stream = torch.cuda.Stream(self.device)
        self._rings: dict[int, list[_Pinned]] = {}
        self._turn = 0
        # Batches that are being copied from, each with the event recorded after its copy.
        self._under_way: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def put(self, batch: Any) -> Batch:
        """Return tensors on the device of a batch in any form that `etl.fit` accepts.

        The arrays of `batch` may be overwritten as soon as this returns.
        """
        return self._send(as_batch(batch), stage=True).receive()

    def send(self, batch: Batch) -> _Sent:
        """Begin to copy `batch` to the device.

        Arrays in memory from `allocate` are held until they are copied, and must not be overwritten before compute has
        waited for the copy.
        """
        return self._send(batch, stage=False)

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate page-locked memory, which the device reads directly: uint8 of shape `(nbytes,)`."""
        pinned: np.ndarray = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def place(self, model: torch.nn.Module, dtype: str | None) -> torch.nn.Module:
        """Move `model` to the device and convert its floating-point parameters to `dtype`, in place; return it."""
        return model.to(device=self.device, dtype=None if dtype is None else torch_dtype(dtype))

    def synchronize(self) -> None:
        """Wait until all streams of the device are idle."""
        torch.cuda.synchronize(self.device)

    def _send(self, batch: Batch, stage: bool) -> _Sent:
        while self._under_way and self._under_way[0][0].query():  # it has been copied
            self._under_way.popleft()
        self._turn = (self._turn + 1) % BUFFERS
        position = itertools.count()
        with torch.cuda.stream(self._stream):
            moved = map_batch(batch, lambda array: self._copy(as_tensor(array), next(position), stage))
            copied = torch.cuda.Event()
            copied.record(self._stream)
        self._under_way.append((copied, batch))
        return _Sent(moved, copied, self.device)

    def _copy(self, source: torch.Tensor, position: int, stage: bool) -> torch.Tensor:
        if source.is_cuda:
            return source.to(self.device, non_blocking=True)  # itself, unless it is on another device
        if not stage and source.is_contiguous() and source.is_pinned():
            return source.to(self.device, non_blocking=True)
        pinned = self._buffer(position, source.nbytes)
        pinned.copied.synchronize()
        staged = pinned.bytes[: source.nbytes].view(source.dtype).view(source.shape)
        staged.copy_(source)
        moved = staged.to(self.device, non_blocking=True)
        pinned.copied.record(self._stream)
        return moved

    def _buffer(self, position: int, nbytes: int) -> _Pinned:
        ring = self._rings.setdefault(position, [])
        if len(ring) < BUFFERS or ring[self._turn].bytes.nbytes < nbytes:
            # The last copy out of a buffer must be done before its memory is freed.
            torch.cuda.synchronize(self.device)
            ring[:] = [
                _Pinned(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())
                for _ in range(BUFFERS)
            ]
        return ring[self._turn]
