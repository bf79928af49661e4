"""Records to a batch: every field of every record written once, into its slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from etl.batch import Batch
from etl.dtypes import is_floating
from etl.pipeline import Pipeline, StageError
from etl.record import Record, record_error

FIELDS = ("features", "label", "features_mask", "labels_mask")
NOTHING_LEFT = Pipeline([])


class Collator:
    """Applies `pipeline` to records and stores the results in new arrays, one for each field.

    Floating features, labels and masks take `dtype`; integers keep theirs. The first record tells names, shapes and
    dtypes; a later one that differs is an error. `source` is only named in errors.
    """

    def __init__(self, source: Any, pipeline: Pipeline, dtype: np.dtype) -> None:
        self._source = source
        self._pipeline = pipeline
        self._dtype = dtype
        self._layout: dict[str, tuple[tuple[int, ...], np.dtype]] | None = None

    def collate(self, numbered: Iterable[tuple[int, Record]], count: int) -> Batch:
        """A batch of `count` records from pairs of number and record. Raises `RecordError` for the one that fails."""
        arrays: dict[str, np.ndarray] = {}
        for slot, (number, record) in enumerate(numbered):
            try:
                pipeline = self._pipeline
                if self._layout is None:
                    record, pipeline = pipeline(record), NOTHING_LEFT
                    self._layout = self._lay_out(record)
                if not arrays:
                    arrays = {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in self._layout.items()}
                found = pipeline.write_into(record, {name: array[slot, ...] for name, array in arrays.items()})
                if any(name in found and name not in arrays for name in FIELDS):
                    raise ValueError(f"it has fields {', '.join(found)}, the records before it {', '.join(arrays)}")
            except StageError as error:
                raise record_error(self._source, number, error.stage, error.__cause__ or error) from error.__cause__
            except (ValueError, TypeError) as error:
                raise record_error(self._source, number, "collate", error) from error
        return to_batch(arrays)

    def _lay_out(self, record: Record) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        if not isinstance(record, Mapping):
            raise ValueError(f"it is a {type(record).__name__}; a record is a mapping with 'features' and 'label'")
        layout = {}
        for name in FIELDS:
            if name in record:
                value = np.asarray(record[name])
                layout[name] = (value.shape, batch_dtype(value.dtype, self._dtype))
        if "features" not in layout:
            raise ValueError(f"it has no field 'features'; it has {', '.join(map(repr, record)) or 'none'}")
        return layout


def batch_dtype(stored: np.dtype, wanted: np.dtype) -> np.dtype:
    """The dtype in a batch of what is `stored`, when floating values are `wanted` in another."""
    # Files may hold the other byte order, which torch does not take.
    return wanted if is_floating(stored) else stored.newbyteorder("=")


def to_batch(arrays: Mapping[str, np.ndarray]) -> Batch:
    """The batch of arrays named as the fields of a record; records without a label give labels None."""
    return Batch(arrays["features"], arrays.get("label"), arrays.get("features_mask"), arrays.get("labels_mask"))
