"""Stage "channels_first": the axis order that torch expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from etl.sources.record import Record


@dataclass(frozen=True)
class ChannelsFirst:
    """Turn `features` of shape `(height, width, channels)` into `(channels, height, width)`; `(height, width)` gains
    one channel. A view: nothing is copied until the next stage reads it.
    """

    name: ClassVar[str] = "channels_first"
    fingerprint_kind: ClassVar[str] = "etl.stages.channels_first.ChannelsFirst"
    changes_length: ClassVar[bool] = True

    def __call__(self, record: Record) -> Record:
        pixels = record["features"]
        if pixels.ndim == 2:
            return {**record, "features": pixels[None]}
        if pixels.ndim != 3:
            raise ValueError(f"features have shape {pixels.shape}, not (height, width, channels) or (height, width)")
        return {**record, "features": pixels.transpose(2, 0, 1)}
