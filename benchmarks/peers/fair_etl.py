"""The loaders of fair-etl."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, Loader


def load_raw(folder: str, batch_size: int, threads: int) -> Any:
    import etl

    source = etl.ImageFolder(folder)
    iterator = etl.RawIterator(source, etl.image_pipeline(size=224, decoder="turbo"), batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size=3, threads=threads)


def prepare_store(source: str, folder: str) -> None:
    import etl
    import presave

    images = np.load(source, mmap_mode="r")
    records = [{"features": pixels, "label": number} for number, pixels in enumerate(images)]
    presave.write(f"{folder}/photographs.store", etl.records(records, etl.Pipeline([]))).close()


def load_store(folder: str, batch_size: int, threads: int) -> Any:
    import etl

    pipeline = etl.Pipeline([etl.stages.ChannelsFirst(), etl.stages.Normalise()])
    iterator = etl.PresavedIterator(f"{folder}/photographs.store", pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size=3, threads=threads)


LOADERS = (
    Loader("fair-etl", RAW, load_raw, imports=("etl",), note='decoder="turbo", prefetch_size=3'),
    Loader(
        "fair-etl",
        PRESAVED,
        load_store,
        imports=("etl", "presave"),
        prepare=prepare_store,
        note='format="npy", prefetch_size=3',
    ),
)
