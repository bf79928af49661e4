"""A sequence of named stages, which can be cut after any of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from etl.dtypes import is_floating
from etl.record import Record
from etl.stages import ChannelsFirst, Decode, Normalise, Resize, Stage
from etl.stages.stage import describe_stage, stage_name

# Mean and standard deviation of all pixels of CIFAR-10's 50,000 training images, in units of 1 (E. Stevens, L. Antiga,
# T. Viehmann: Deep Learning with PyTorch, 2020, section 7.1, whose mean of 0.4915, 0.4823, 0.4468 was summed up in
# float32). The 0.2023, 0.1994, 0.2010 that are often seen are means of the standard deviations of single images.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)

AnyStage = Stage | Callable[[Record], Record]


class StageError(Exception):
    """A stage failed on a record; `stage` is its name, the cause is chained."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class Pipeline:
    """Stages applied one after another. `Pipeline([])` leaves records as they are.

    `until(name)` is the part up to and with a stage, `after(name)` the rest, which remembers what went before: a store
    written after the one part is read with the other, and with no other pipeline's.
    """

    def __init__(self, stages: Sequence[AnyStage], *, preceding: Sequence[AnyStage] = ()) -> None:
        self.stages = tuple(stages)
        self.preceding = tuple(preceding)
        names = [stage_name(stage) for stage in (*self.preceding, *self.stages)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two stages are called {', '.join(repeated)}; a pipeline is cut by name, so names differ")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its stages, in order."""
        return tuple(stage_name(stage) for stage in self.stages)

    def until(self, name: str) -> Pipeline:
        """The pipeline up to and with stage `name`; raises `ValueError` that lists the stages."""
        return Pipeline(self.stages[: self._position(name) + 1], preceding=self.preceding)

    def after(self, name: str) -> Pipeline:
        """What is left to do after stage `name`; raises `ValueError` that lists the stages."""
        cut = self._position(name) + 1
        return Pipeline(self.stages[cut:], preceding=(*self.preceding, *self.stages[:cut]))

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name the work done on a record by the end of this pipeline."""
        return _fingerprint((*self.preceding, *self.stages))

    @cached_property
    def preceding_fingerprint(self) -> str:
        """The fingerprint of the work that must have been done before this pipeline starts."""
        return _fingerprint(self.preceding)

    def __call__(self, record: Record) -> Record:
        """`record` after all stages; raises `StageError` naming the stage that failed."""
        return self._apply(self.stages, record)

    def write_into(self, record: Record, out: Mapping[str, np.ndarray]) -> Collection[str]:
        """Apply all stages and store each field into `out[field]`, converted to its dtype; the fields that there were.

        A last stage with `write_into(features, out)` writes straight into a float32 slot. Raises `StageError`, and
        `ValueError` where a field is missing, or has not the shape of its slot or a dtype that fits into it.
        """
        last = self.stages[-1] if self.stages else None
        write = getattr(last, "write_into", None)
        if last is None or write is None or out["features"].dtype != np.float32:
            record = self(record)
            for name, slot in out.items():
                _check_fits(record, name, slot)
                slot[...] = record[name]
            return record.keys()
        record = self._apply(self.stages[:-1], record)
        for name, slot in out.items():
            _check_fits(record, name, slot)
            if name != "features":
                slot[...] = record[name]
        try:
            write(record["features"], out["features"])
        except Exception as error:
            raise StageError(stage_name(last)) from error
        return record.keys()

    def __repr__(self) -> str:
        return f"Pipeline({' -> '.join(self.names) or 'nothing'})"

    def _apply(self, stages: Sequence[AnyStage], record: Record) -> Record:
        for stage in stages:
            try:
                record = stage(record)
            except MemoryError:
                raise
            except Exception as error:
                raise StageError(stage_name(stage)) from error
        return record

    def _position(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"the pipeline has no stage {name!r}; it has {', '.join(self.names) or 'none'}")
        return self.names.index(name)


def image_pipeline(size: int | tuple[int, int] = 224, decoder: str = "pillow") -> Pipeline:
    """Photographs to training arrays: decode, resize, channels_first, normalise (ImageNet's statistics).

    `size` is a side in pixels or `(height, width)`. Encoded bytes become float32 of shape `(3, height, width)`.
    """
    height, width = (size, size) if isinstance(size, int) else size
    return Pipeline([Decode(decoder), Resize(height, width), ChannelsFirst(), Normalise()])


def digits_pipeline() -> Pipeline:
    """MNIST digits to training arrays: channels_first, normalise to -1..1.

    uint8 of shape `(28, 28)` becomes float32 of shape `(1, 28, 28)`.
    """
    return Pipeline([ChannelsFirst(), Normalise(mean=(0.5,), std=(0.5,))])


def cifar10_pipeline() -> Pipeline:
    """CIFAR-10's images to training arrays: channels_first, normalise (statistics of its training set).

    uint8 of shape `(32, 32, 3)` becomes float32 of shape `(3, 32, 32)`.
    """
    return Pipeline([ChannelsFirst(), Normalise(CIFAR10_MEAN, CIFAR10_STD)])


def _check_fits(record: Record, name: str, slot: np.ndarray) -> None:
    # Without this, numpy would broadcast a smaller value over the slot, and cut off what an integer cannot hold.
    if name not in record:
        raise ValueError(f"it has no field {name!r}, which the records before it have")
    value = np.asarray(record[name])
    if value.shape != slot.shape:
        raise ValueError(
            f"field {name!r} has shape {value.shape}, the records before it {slot.shape}; resize or pad them"
        )
    # Features are converted to the floating dtype that was asked for; anything else must not lose a digit.
    if not (is_floating(slot.dtype) or np.can_cast(value.dtype, slot.dtype, "safe")):
        raise ValueError(f"field {name!r} is {value.dtype}, the records before it {slot.dtype}; use one dtype for all")


def _fingerprint(stages: Sequence[AnyStage]) -> str:
    canonical = json.dumps([describe_stage(stage) for stage in stages], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
