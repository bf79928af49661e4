"""Loading of one batch: its records, its arrays, and the chunks that several workers can load at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.lazy_names import lazy_names

if TYPE_CHECKING:
    from etl.loading.batch import Batch
    from etl.loading.fused_gather import gather_normalised
    from etl.loading.padding import Padding
    from etl.loading.records import Records

__all__ = ["Batch", "Padding", "Records", "gather_normalised"]

__getattr__ = lazy_names(
    __name__,
    {
        "etl.loading.batch": ("Batch",),
        "etl.loading.fused_gather": ("gather_normalised",),
        "etl.loading.padding": ("Padding",),
        "etl.loading.records": ("Records",),
    },
)
