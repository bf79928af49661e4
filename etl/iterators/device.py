"""Batches on a device, copied while it computes; the rest of the pipeline can run there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from etl.iterators import BatchIterator
from etl.iterators.ahead import AheadIterator
from etl.iterators.iterator import call_optional, close_epoch
from etl.loading.batch import Batch, as_batch
from etl.loading.batch_plan import ENDED, State
from etl.loading.sampler import Uneven
from etl.stages import Cast, ChannelsFirst, Normalise
from etl.stages.pipeline import Pipeline
from etl.training.backends import Backend
from etl.training.backends import backend as find_backend

if TYPE_CHECKING:
    import torch

OnDevice = Callable[["torch.Tensor"], "torch.Tensor"]
# Batches copied ahead of the one in use: one is enough to hide the copy if compute takes longer.
AHEAD = 1
_END: Any = object()


class DeviceIterator(AheadIterator):
    """Wraps any iterable of batches and yields them as tensors on a device.

    Each batch is copied while the device computes with the one before. Masks and the marks of repeated records are
    copied with it.

    Parameters
    ----------
    iterator : BatchIterator or iterable of batches
        An iterator of etl; or any other iterable, such as a torch DataLoader, whose batches have a form that `etl.fit`
        accepts. It must not overwrite a batch when the next one is requested.
    backend : Backend or str
        The device, as `etl.backend` names it.
    finish : Pipeline, optional
        The rest of the pipeline, to run on the device. If `iterator` ends before "channels_first" or "normalise", uint8
        is copied, a quarter of the bytes of float32. The device's results are bit for bit those of the stages. Floating
        features are converted to the iterator's dtype at the end, if it names one.

    Raises
    ------
    ValueError
        If `finish` has a stage other than `ChannelsFirst`, `Normalise` and `Cast`; while iterating, if a batch has
        another form, or several inputs that `finish` would have to take.
    TypeError
        If `iterator` cannot be iterated; from `shard`, `state_dict` and `load_state_dict`, if it is not a
        `BatchIterator`.

    Notes
    -----
    If the device can read host memory directly, loading threads write batches into such memory. Batches from loading
    processes are copied into it first.
    """

    async_unsupported_reason = "it is on the device already; wrap the iterator inside it"

    def __init__(
        self, iterator: BatchIterator | Iterable[Any], backend: Backend | str = "auto", finish: Pipeline | None = None
    ) -> None:
        super().__init__(iterator)
        self._backend = find_backend(backend) if isinstance(backend, str) else backend
        self._finish = [_on_device(stage) for stage in (finish.stages if finish is not None else ())]
        self._running: object | None = None
        if self._backend.device.type != "cpu":
            call_optional(iterator, "allocate_with", self._backend.allocate)

    def __iter__(self) -> Iterator[Batch]:
        self._rewind()
        self._running = token = object()
        batches = iter(self._iterator)
        self._align()
        self._has_read_ahead = True
        return _Epoch(self, batches, token)

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> DeviceIterator:
        """Return a part of each epoch on the same device, see `BatchIterator.shard`."""
        shard = DeviceIterator(self._shard(rank, world_size, uneven), self._backend)
        shard._finish = self._finish
        return shard

    def _finished(self, batch: Batch) -> Batch:
        if not self._finish:
            return batch
        features = batch.features
        if isinstance(features, tuple):
            raise ValueError(
                f"features are a tuple of {len(features)} arrays, but `finish` takes records with one input; do its "
                "work in a stage of your own, in the pipeline of the iterator"
            )
        for stage in self._finish:
            features = stage(features)
        dtype = getattr(self, "dtype", None)
        if dtype is not None and features.is_floating_point():
            features = _cast(dtype, features)
        return replace(batch, features=features)

    def _end_epoch(self) -> None:
        self._running = None


class _Epoch(Iterator[Batch]):
    """One epoch in progress. A generator that is dropped would close `batches` where an interrupt is lost."""

    def __init__(self, owner: DeviceIterator, batches: Iterator[Any], token: object) -> None:
        self._owner = owner
        self._batches: Iterator[Any] | None = batches
        self._token = token
        self._sent: deque[tuple[Any, State | None]] = deque()
        self._is_ended = False
        self._error: Exception | None = None

    def __next__(self) -> Batch:
        owner = self._owner
        if self._batches is None:
            raise StopIteration
        try:
            if owner._running is not self._token:
                raise RuntimeError(ENDED)
            while not self._is_ended and len(self._sent) <= AHEAD:
                self._send_next(self._batches)
            if self._sent:
                arriving, state = self._sent.popleft()
                batch = owner._finished(arriving.receive())
                owner._state = state
                if self._is_ended and not self._sent and self._error is None:
                    owner._has_read_ahead = False  # the wrapped iterator is where the next loop begins
                return batch
            if self._error is not None:
                raise self._error
        except BaseException:
            self.close()
            raise
        self.close()
        owner._align()
        raise StopIteration

    def _send_next(self, batches: Iterator[Any]) -> None:
        """Send the next batch. An error is kept until the batches before it have been handed out."""
        owner = self._owner
        try:
            batch = next(batches, _END)
            if batch is _END:
                self._is_ended = True
            else:
                self._sent.append((owner._backend.send(as_batch(batch)), owner._read_state()))
        except Exception as error:
            if not self._sent:
                raise
            self._error, self._is_ended = error, True

    def close(self) -> None:
        """End the epoch of the wrapped iterator."""
        batches, self._batches, self._error = self._batches, None, None
        self._sent.clear()
        if batches is not None:
            close_epoch(batches, self._owner._iterator)


def _on_device(stage: Any) -> OnDevice:
    """Return a function that does the work of `stage` on a batch of tensors."""
    # Subclasses may do something else.
    if type(stage) is ChannelsFirst:
        return _channels_first
    if type(stage) is Normalise:
        return _normalise(stage)
    if type(stage) is Cast:
        return partial(_cast, stage.dtype)
    name = getattr(stage, "name", repr(stage))
    raise ValueError(f"stage {name!r} cannot be done on the device; only ChannelsFirst, Normalise and Cast can")


def _channels_first(features: torch.Tensor) -> torch.Tensor:
    return features.unsqueeze(1) if features.ndim == 3 else features.permute(0, 3, 1, 2)


def _normalise(stage: Normalise) -> OnDevice:
    # Copied to each device once, not with every batch.
    constants: dict[torch.device, list[torch.Tensor]] = {}

    def normalise(features: torch.Tensor) -> torch.Tensor:
        import torch

        if features.ndim != 4 or features.shape[1] != len(stage.mean):
            raise ValueError(
                f"features have shape {tuple(features.shape)}, not (batch, {len(stage.mean)}, height, width)"
            )
        if features.device not in constants:
            constants[features.device] = [
                torch.from_numpy(each).to(features.device) for each in (stage.offset, stage.scale)
            ]
        offset, scale = constants[features.device]
        # Made contiguous while it is still uint8, a quarter of the size. A copy, because the batch must not change.
        return features.contiguous().to(torch.float32, copy=True).sub_(offset).mul_(scale)

    return normalise


def _cast(dtype: str, features: torch.Tensor) -> torch.Tensor:
    from etl.training.backends.tensors import torch_dtype

    return features.to(torch_dtype(dtype))
