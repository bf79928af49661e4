"""The tools of a peer's file: `Loader`, which is a row of the table, the arrays to deliver, and memory for batches.

A batch of 64 images has 38.5 MB. New memory of that size comes page by page from the kernel, which costs as much as
normalising into it, and more in shared memory. So libraries whose users make the batches themselves get memory that is
used again. FFCV and DALI do the same with theirs. As there, a batch is valid until the next one is requested.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

RAW, PRESAVED = "raw", "presaved"
TASKS = (RAW, PRESAVED)
OURS = "fair_etl"
# Each is a file of this folder with `LOADERS`, and a file in requirements/ with what its environment needs.
PEERS = (
    OURS,
    "torch_dataloader",
    "spdl",
    "grain",
    "ffcv",
    "dali",
    "tf_data",
    "litdata",
    "mosaicml",
    "hf_datasets",
    "webdataset",
    "numpy_memmap",
    "hdf5",
    "tensorstore",
)

# Pixels a side of the images that every loader delivers, normalised with the statistics of ImageNet.
SIZE = 224
# In units of 1, and as constants for `(pixels - PIXEL_MEAN) * PIXEL_SCALE` of shape `(3, 1, 1)`, pixels from 0 to 255.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PIXEL_MEAN = (255 * np.array(MEAN, np.float32)).reshape(3, 1, 1)
PIXEL_SCALE = (1 / (255 * np.array(STD, np.float32))).reshape(3, 1, 1)
# The normalised value of each of the 256 pixels, a row for each channel.
PIXEL_TABLE = (np.arange(256, dtype=np.float32) - PIXEL_MEAN[:, 0]) * PIXEL_SCALE[:, 0]

# Takes folder, batch size and threads; returns an iterable of (images, numbers), one epoch an iteration.
Load = Callable[[str, int, int], Iterable[tuple[Any, Any]]]
# Takes the source of the files, and the folder to write them into.
Prepare = Callable[[str, str], None]


@dataclass(frozen=True)
class Loader:
    """One library's way to do one task.

    Photographs are decoded at full size, and none are kept in memory from one epoch to the next: the page cache is warm
    for all loaders.

    Attributes
    ----------
    name : str
        As the table shows it.
    task : str
        `RAW` or `PRESAVED`.
    load : callable
        The code that a user writes, and nothing else: its lines are counted. `load(folder, batch_size, threads)`
        returns an object that is iterated once an epoch. It yields images, float32 of shape `(batch, 3, 224, 224)`,
        normalised, in the CPU's memory as numpy or torch takes it, and the numbers of the photographs, integers of
        shape `(batch,)`. A batch is valid until the next one is requested.
    imports : tuple of str
        Modules to import before the clock starts; `module:function` imports the module and calls the function.
    prepare : callable or None
        `prepare(source, folder)` writes the files that are loaded. For `RAW` the source is the folder of photographs,
        `000017/photograph.jpg`, and without `prepare` that folder is loaded itself. For `PRESAVED` it is a .npy of all
        pixels, uint8 of shape `(photographs, 224, 224, 3)`.
    channels_last : bool
        Whether the memory layout is `(batch, 224, 224, 3)`; the shape is as above.
    note : str
        Shown beside the row.
    """

    name: str
    task: str
    load: Load
    imports: tuple[str, ...] = ()
    prepare: Prepare | None = None
    channels_last: bool = False
    note: str = ""

    @property
    def module(self) -> str:
        """Module that defines it."""
        return self.load.__module__

    @property
    def peer(self) -> str:
        """File that defines it, without the suffix."""
        return self.module.rpartition(".")[2]

    @property
    def key(self) -> str:
        """Name among all rows of both tables."""
        return f"{self.task}/{self.name}"


def find_loaders(tasks: Iterable[str], peers: Iterable[str]) -> list[Loader]:
    """Return the loaders of some tasks in the files of some peers, in the order of `PEERS`."""
    modules = [importlib.import_module(f"benchmarks.peers.{peer}") for peer in PEERS if peer in set(peers)]
    return [loader for module in modules for loader in module.LOADERS if loader.task in set(tasks)]


def normalise(pixels: np.ndarray, image: np.ndarray) -> None:
    """Normalise `pixels`, uint8 of shape `(224, 224, 3)`, into `image`, float32 of shape `(3, 224, 224)`.

    It is for libraries that leave arithmetic to their user. A pixel has 256 values, so normalising is a table, as in
    FFCV's own `NormalizeImage`. On one core of a Xeon, writing into memory that was used before, OpenCV's tables gave
    7,800 images/s, torch's `image.copy_(pixels.permute(2, 0, 1)).mul_(scale).add_(shift)` 7,000, the same on a whole
    batch 5,800, and `np.subtract` with `*=` 4,700. OpenCV releases the GIL.
    """
    import cv2

    for plane, table, out in zip(cv2.split(pixels), PIXEL_TABLE, image, strict=True):
        cv2.LUT(plane, table, dst=out)


class ReusedBatches:
    """Memory for the batches of one process's threads. It grows to as many batches as are in use at once."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._free = deque[np.ndarray]()

    def take(self, count: int) -> np.ndarray:
        """Return a batch for `count` images, with any content."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty((self._batch_size, 3, SIZE, SIZE), np.float32)
        return memory[:count]

    def give_back(self, batch: np.ndarray) -> None:
        """Return a batch of `take` that is no longer read."""
        memory: Any = batch.base
        self._free.append(memory)


class SharedBatches:
    """Shared memory for the batches of a torch DataLoader's workers. Each worker writes into its own batches in turn.

    A tensor that is not in shared memory is copied there when a worker sends it, and both processes map new pages for
    it: "Reuse buffers passed through a Queue", docs.pytorch.org/docs/stable/notes/multiprocessing.html.

    Parameters
    ----------
    workers, batch_size : int
        As the DataLoader takes them.
    ahead : int
        Batches that a worker may have begun before they are requested. It is `prefetch_factor` for a map-style data
        set. For an iterable data set it is the sum over all workers, since the last worker loads for all once the
        others are done. Each worker has memory for one batch more, which is in use.
    """

    def __init__(self, workers: int, batch_size: int, ahead: int) -> None:
        import torch

        self._memory = torch.empty((workers, ahead + 1, batch_size, 3, SIZE, SIZE)).share_memory_()
        self._turn = 0

    def take(self, count: int) -> Any:
        """Return a tensor for `count` images, with any content. Call it in a worker."""
        from torch.utils.data import get_worker_info

        worker: Any = get_worker_info()
        self._turn = (self._turn + 1) % self._memory.shape[1]
        return self._memory[worker.id, self._turn, :count]
