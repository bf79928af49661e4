"""Iterators of every strategy over the same records, and what their batches are to the bit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import etl
import presave

NOTHING = etl.Pipeline([])
STRATEGIES = ("raw", "presaved", "presaved early", "async raw", "async presaved", "async presaved early")


def iterate(strategy: str, folder: Path, records: Any, pipeline: etl.Pipeline, **settings: Any) -> Any:
    """An iterator of that strategy; "presaved" is cut after the last stage, "presaved early" before the first."""
    kind = strategy.removeprefix("async ")
    if kind == "raw":
        iterator: Any = etl.RawIterator(records, pipeline, **settings)
    else:
        before, after = (NOTHING, pipeline) if kind == "presaved early" else (pipeline, NOTHING)
        ragged = ["features", *(["label"] if np.ndim(records[0]["label"]) else [])] if "padding" in settings else []
        store = presave.write(folder / strategy, etl.records(list(records), before), ragged=ragged, shard_nbytes=600)
        iterator = etl.PresavedIterator(store, after, **settings)
    return etl.AsyncIterator(iterator, threads=2) if strategy.startswith("async") else iterator


def bits(batches: Iterable[etl.Batch]) -> list[list[tuple[tuple[int, ...], np.dtype, bytes]]]:
    """Shape, dtype and bytes of every array."""
    return [[(array.shape, array.dtype, array.tobytes()) for array in batch.arrays()] for batch in batches]
