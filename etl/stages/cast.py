"""Stage "cast": features in another dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from etl.stages.dtypes import find_dtype
from presave import Record


@dataclass(frozen=True)
class Cast:
    """Convert `features` to a floating-point dtype.

    A store that is presaved after a cast to float16 takes half the space of float32.

    Attributes
    ----------
    dtype : str
        "float16", "bfloat16", "float32" or "float64". numpy's file formats cannot hold bfloat16.

    Raises
    ------
    ValueError
        If the dtype is unknown.
    """

    dtype: str
    name: ClassVar[str] = "cast"
    fingerprint_kind: ClassVar[str] = "etl.stages.cast.Cast"

    def __post_init__(self) -> None:
        find_dtype(self.dtype)

    def __call__(self, record: Record) -> Record:
        return {**record, "features": record["features"].astype(find_dtype(self.dtype))}
