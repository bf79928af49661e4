"""A program that knows nothing but what JSON says: it goes on where a state was taken, and says what it got.

A request has `how` and where an iterator is made, and the `state` it is to go on from; each is restored in a process of
its own.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import etl
import presave
from etl.iterators import BatchIterator
from etl.iterators.indexed import IndexedIterator
from etl.loading import Padding
from presave.mapped_rows import COMPILED
from tests.torture.harness import fork, serve

RECORDS = 37
# Worker processes may have to be started.
LIMIT_SECONDS = 600


class Numbered:
    """Records told by their number, of different lengths if they are `ragged`."""

    def __init__(self, ragged: bool = False) -> None:
        self.ragged = frozenset({"features"}) if ragged else frozenset()
        self.lengths = [1 + 7 * number % 11 for number in range(RECORDS)] if ragged else [3] * RECORDS

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        features = np.random.default_rng(index).standard_normal((self.lengths[index], 2), dtype=np.float32)
        return {"features": features, "label": index}


class Noise:
    """A random stage: what a record becomes depends on seed, epoch and record."""

    name = "noise"
    is_random = True

    def __call__(self, record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        noise = generator.standard_normal(record["features"].shape, dtype=np.float32)
        return {**record, "features": record["features"] + noise}


class Jitter:
    """A stage that takes another time for each record, so that workers overtake each other in another way."""

    name = "jitter"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        time.sleep(random.Random(f"{self.seed} {record['label']}").choice([0, 0, 0.0002, 0.001, 0.003]))
        return record


def make_iterator(how: dict[str, Any]) -> Any:
    """The iterator that `how` describes, JSON values only."""
    options = {name: how[name] for name in ("batch_size", "shuffle", "seed", "drop_last")}
    if how["buckets"] is not None:
        options |= {"padding": Padding(), "bucket_records": how["buckets"]}
    stages = [Noise()] if how.get("noise", True) else []
    pipeline = etl.Pipeline([*stages, Jitter(how["jitter"])] if "jitter" in how else stages)
    source = Numbered(how["buckets"] is not None)
    iterator: IndexedIterator
    if how["store"] is None:
        iterator = etl.RawIterator(source, pipeline, **options)
    else:
        iterator = etl.PresavedIterator(presave.open_store(how["store"], trusted=True), pipeline, **options)
    if how["world_size"] > 1:
        iterator = iterator.shard(how["rank"], how["world_size"], how["uneven"])
    return iterator if how["ahead"] is None else etl.AsyncIterator(iterator, **how["ahead"])


def digests(iterator: BatchIterator, epochs: int) -> Iterator[tuple[int, list[int], str]]:
    """Epoch, record numbers but for repeated ones, and the bytes of everything of each batch, over so many further
    ends of epochs.
    """
    end = iterator.epoch + epochs
    while iterator.epoch < end:
        epoch = iterator.epoch
        for batch in iterator:
            digest = hashlib.sha256()
            for array in batch.arrays():
                digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
            own = batch.labels if batch.repeated is None else batch.labels[~batch.repeated]
            yield epoch, own.tolist(), digest.hexdigest()


def restore(saved: dict[str, Any]) -> list[tuple[int, list[int], str]]:
    """Return what is left before epoch `until`."""
    if "cpus" in saved["how"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: saved["how"]["cpus"]])
        sys.setswitchinterval(saved["how"]["switch_seconds"])
    with make_iterator(saved["how"]) as iterator:
        iterator.load_state_dict(saved["state"])
        return list(digests(iterator, saved["until"] - iterator.epoch))


if __name__ == "__main__":
    COMPILED.wait()  # once, for all that are forked
    serve(lambda saved: fork(partial(restore, saved), LIMIT_SECONDS).returned)
