"""Stores of the photographs: in which formats, cut after which stages, and what it takes to write them."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import etl
import presave

# What `presave.write` is told, by the name that figures have.
FORMATS: dict[str, dict[str, Any]] = {
    "npy": {"format": "npy"},
    "hdf5": {"format": "hdf5"},
    "hdf5 gzip": {"format": "hdf5", "options": {"compression": "gzip"}},
    "safetensors": {"format": "safetensors"},
    "torch": {"format": "torch"},
    "pickle": {"format": "pickle"},
}
# "read" are the files' own bytes, before any stage of the pipeline.
READ = "read"
STAGES = (READ, "decode", "resize", "normalise")
# Of these the records have different sizes.
RAGGED_STAGES = (READ, "decode")
JOBS = 2


def until(pipeline: etl.Pipeline, stage: str) -> etl.Pipeline:
    """The part that is done when a store is written."""
    return etl.Pipeline([]) if stage == READ else pipeline.until(stage)


def after(pipeline: etl.Pipeline, stage: str) -> etl.Pipeline:
    """The part that is left to do when it is read."""
    return pipeline if stage == READ else pipeline.after(stage)


def write_store(
    path: Path, source: presave.RecordSequence, pipeline: etl.Pipeline, format_name: str, stage: str
) -> None:
    """Write the records of `source` as `stage` leaves them, with two jobs."""
    presave.write(path, etl.records(source, until(pipeline, stage)), jobs=JOBS, **FORMATS[format_name]).close()


def seconds_to_write(
    path: Path, source: presave.RecordSequence, pipeline: etl.Pipeline, format_name: str, stage: str
) -> float:
    """Seconds of `write_store`, once the format's library has been imported and the source's files are in memory."""
    warm = [source[index] for index in range(len(source))]
    first = path.with_suffix(".first")
    write_store(first, warm[:1], pipeline, format_name, stage)
    started = time.perf_counter()
    write_store(path, source, pipeline, format_name, stage)
    return time.perf_counter() - started


def open_store(path: str | Path, format_name: str) -> presave.Store:
    """The store that `write_store` wrote in this format."""
    # Earlier commits have no pickle and no such argument.
    trusted: dict[str, Any] = {"trusted": True} if FORMATS[format_name]["format"] == "pickle" else {}
    return presave.open_store(path, **trusted)


def why_not_written(format_name: str, stage: str) -> str:
    """What the commit under test lacks for this store; empty where nothing."""
    written = FORMATS[format_name]
    arguments = inspect.signature(presave.write).parameters
    if written["format"] not in presave.formats():
        return f"this commit has no format {written['format']!r}"
    if "options" in written and "options" not in arguments:
        return "formats have no options at this commit"
    if stage in RAGGED_STAGES and "ragged" not in arguments:
        return "stores hold no records of different sizes at this commit"
    return ""
