"""TensorStore: google.github.io/tensorstore, a zarr array with a chunk for each photograph.

`read` reads all rows of a batch at once, with threads of its own; a pool of threads requests and normalises batches.
google.github.io/tensorstore/python/tutorial.html advises to request many chunks at once, as a batch does here.
google.github.io/tensorstore/context.html and .../kvstore/file/index.html name the limits: `data_copy_concurrency`, here
the workers, and `file_io_concurrency`, by default "shared": at least four threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorstore

from benchmarks.peers.loader import SIZE, ReadAhead, decode, fill_from_pixels, list_photographs


def prepare(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    store = tensorstore.open(
        {
            "driver": "zarr",
            "kvstore": f"file://{folder}/photographs.zarr/",
            "metadata": {"chunks": [1, SIZE, SIZE, 3], "compressor": None},
        },
        create=True,
        dtype=tensorstore.uint8,
        shape=(len(files), SIZE, SIZE, 3),
    ).result()
    for number, file in enumerate(files):
        store[number] = decode(file)
    np.save(f"{folder}/labels.npy", labels)


def load_zarr(folder: str, batch_size: int, workers: int, ahead: int = 3, file_io: int | str = "shared") -> Any:
    limits = {"data_copy_concurrency": {"limit": workers}, "file_io_concurrency": {"limit": file_io}}
    images = tensorstore.open(
        {"driver": "zarr", "kvstore": f"file://{folder}/photographs.zarr/", "context": limits}
    ).result()

    def fill(batch: np.ndarray, indices: np.ndarray) -> None:
        fill_from_pixels(batch, images[indices].read().result())

    return ReadAhead(np.load(f"{folder}/labels.npy"), fill, batch_size, workers, ahead)


load_zarr.prepare = prepare
load_zarr.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6), "file_io": ("shared", 1, 2)}
