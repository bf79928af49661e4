"""Files written by commit 5597377, before classes were moved and renamed: they must stay readable.

`python -m tests.golden` writes them to `tests/golden_files`; it was run once, by that commit.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import etl
import presave
from etl import stages
from etl.iterators import BatchIterator
from etl.loading import Padding
from etl.stages.stage import describe_stage

FOLDER = Path(__file__).parent / "golden_files"
RECORDS = 16
SHARD_NBYTES = 300
# Batches taken before each state.
TAKEN = 2


class Squares:
    """`RECORDS` images of 6 x 8 pixels; no randomness, so that each version makes the same ones."""

    name = "squares"

    def __init__(self, stops_at: int | None = None) -> None:
        self._stops_at = stops_at

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self._stops_at:
            raise KeyboardInterrupt
        pixels = (np.arange(6 * 8 * 3) * (index + 3) % 251).astype(np.uint8).reshape(6, 8, 3)
        return {"features": pixels, "label": index}


class Walks:
    """`RECORDS` sequences of different lengths."""

    name = "walks"
    ragged = ("features",)
    lengths = np.arange(RECORDS) * 5 % 7 + 1

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.full((int(self.lengths[index]), 2), index, np.float32), "label": index}


def pipelines() -> dict[str, etl.Pipeline]:
    """Return pipelines that have every built-in stage, with and without the settings that were added later."""
    return {
        "photographs": etl.image_pipeline(size=8),
        "turbo": etl.image_pipeline((8, 9), "turbo", dct_scaling=True),
        "digits": etl.digits_pipeline(),
        "cifar10": etl.cifar10_pipeline(),
        "augmented": etl.Pipeline(
            [
                stages.Decode(),
                stages.RandomResizedCrop(8, 8),
                stages.RandomCrop(6, 6, padding=1),
                stages.RandomFlip(),
                stages.ColourJitter(),
                stages.ChannelsFirst(),
                stages.Normalise(),
                stages.Cast("float16"),
            ]
        ),
        "pixels": pixels(),
    }


def pixels() -> etl.Pipeline:
    """Return the pipeline of the golden store."""
    return etl.Pipeline([stages.Resize(6, 8), stages.ChannelsFirst(), stages.Normalise()])


def records(stops_at: int | None = None) -> etl.loading.Records:
    """Return what the golden store holds."""
    return etl.records(Squares(stops_at), pixels().until("resize"))


def iterators(store: Path) -> dict[str, BatchIterator]:
    """Return iterators of every kind whose states can be saved."""
    raw = etl.RawIterator(Squares(), pixels(), batch_size=3, shuffle=True, seed=5)
    saved = etl.PresavedIterator(store, pixels().after("resize"), batch_size=3, shuffle=True, seed=5)
    walks = etl.RawIterator(Walks(), etl.Pipeline([]), 3, shuffle=True, seed=7, padding=Padding(), bucket_records=6)
    return {
        "raw": raw,
        "presaved": saved,
        "async": etl.AsyncIterator(etl.RawIterator(Squares(), pixels(), 3, shuffle=True, seed=5)),
        "rank 1 of 2": etl.RawIterator(Squares(), pixels(), 3, shuffle=True, seed=5).shard(1, 2),
        "buckets": walks,
        "in order": etl.RawIterator(Squares(), pixels(), 3),
    }


def _write() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    described = {
        name: {"fingerprint": pipeline.fingerprint, "stages": [describe_stage(stage) for stage in pipeline.stages]}
        for name, pipeline in pipelines().items()
    }
    (FOLDER / "fingerprints.json").write_text(json.dumps(described, indent=1) + "\n")
    store = FOLDER / "squares.store"
    presave.write(store, records()).close()
    with suppress(KeyboardInterrupt):
        presave.write(FOLDER / "begun.store", records(stops_at=9), shard_nbytes=SHARD_NBYTES)
    states = {}
    for name, iterator in iterators(store).items():
        with iterator:
            batches = iter(iterator)
            for _ in range(TAKEN):
                next(batches)
            state = iterator.state_dict()
            states[name] = {"state": state, "rest": [batch.labels.tolist() for batch in batches]}
    (FOLDER / "states.json").write_text(json.dumps(states, indent=1) + "\n")


if __name__ == "__main__":
    _write()
