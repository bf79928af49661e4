"""Stage "cast": features in another dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from etl.sources.record import Record
from etl.stages.dtypes import find_dtype


@dataclass(frozen=True)
class Cast:
    """Give `features` the floating dtype called `dtype`: presaved after this, float16 takes half the room of float32.

    Raises `ValueError` for an unknown dtype. numpy's formats cannot hold bfloat16.
    """

    dtype: str
    name: ClassVar[str] = "cast"
    fingerprint_kind: ClassVar[str] = "etl.stages.cast.Cast"

    def __post_init__(self) -> None:
        find_dtype(self.dtype)

    def __call__(self, record: Record) -> Record:
        return {**record, "features": record["features"].astype(find_dtype(self.dtype))}
