"""h5py: docs.h5py.org. Indexing with many rows reads element by element, so each row is read alone.

docs.h5py.org/en/stable/high/dataset.html says that fancy indexing is slow for many rows, and advises `read_direct` into
memory that is used again. Its selection costs more than the read: 80 us a row, against 23 us with the low-level API
(api.h5py.org/h5d.html), which reads into the same memory and is used here. docs.h5py.org/en/stable/threads.html: h5py
reads under one global lock, so threads read in turn; they normalise in parallel.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from benchmarks.peers.loader import SIZE, ReadAhead, decode, list_photographs, normalise


def prepare(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    with h5py.File(f"{folder}/photographs.h5", "w") as file:
        file["labels"] = labels
        images = file.create_dataset("images", (len(files), SIZE, SIZE, 3), np.uint8)
        for number, photograph in enumerate(files):
            images[number] = decode(photograph)


def load_hdf5(folder: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    file = h5py.File(f"{folder}/photographs.h5")
    images = file["images"].id

    def fill(batch: np.ndarray, indices: np.ndarray) -> None:
        pixels, shape = np.empty((SIZE, SIZE, 3), np.uint8), (1, SIZE, SIZE, 3)
        source, target = images.get_space(), h5py.h5s.create_simple(shape)
        for image, index in zip(batch, indices, strict=True):
            source.select_hyperslab((int(index), 0, 0, 0), shape)
            images.read(target, source, pixels)
            normalise(pixels, image)

    return ReadAhead(file["labels"][:], fill, batch_size, workers, ahead)


load_hdf5.prepare = prepare
load_hdf5.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
