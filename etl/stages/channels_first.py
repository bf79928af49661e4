"""Stage "channels_first": the axis order that torch expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from presave import Record


@dataclass(frozen=True)
class ChannelsFirst:
    """Transpose `features` from `(height, width, channels)` to `(channels, height, width)`.

    `(height, width)` becomes `(1, height, width)`. The result is a view: nothing is copied.

    Raises
    ------
    ValueError
        If features have another number of axes.
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
