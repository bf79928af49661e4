"""fair-etl: its own loaders, as its README advises.

Under "Loading" it advises `decoder="turbo"` for photographs, and a few batches ahead; both are the defaults here. Tuned
like every other row.
"""

from __future__ import annotations

from typing import Any

import etl
import presave

etl.load_kernels()  # before the first batch, not in the background beside it


def load_raw(path: str, batch_size: int, workers: int, prefetch_size: int = 3, decoder: str = "turbo") -> Any:
    pipeline = etl.image_pipeline(size=224, decoder=decoder)
    source = etl.ImageFolder(path, follow_links=True)  # to some of the photographs, while it is tried
    iterator = etl.RawIterator(source, pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


load_raw.settings = {"workers": (1, 2, 3), "prefetch_size": (2, 3, 6), "decoder": ("turbo", "pillow")}


def prepare_store(path: str, folder: str) -> None:
    pipeline = etl.image_pipeline(size=224).until("resize")
    source = etl.ImageFolder(path, follow_links=True)
    presave.write(f"{folder}/photographs.store", etl.records(source, pipeline)).close()


def load_store(folder: str, batch_size: int, workers: int, prefetch_size: int = 3) -> Any:
    pipeline = etl.image_pipeline(size=224).after("resize")
    iterator = etl.PresavedIterator(f"{folder}/photographs.store", pipeline, batch_size, shuffle=True)
    return etl.AsyncIterator(iterator, prefetch_size, threads=workers)


load_store.prepare = prepare_store
load_store.settings = {"workers": (1, 2, 3), "prefetch_size": (2, 3, 6)}
