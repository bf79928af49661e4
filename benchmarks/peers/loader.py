"""Tools that the files of several peers share: photographs and their labels, batches of them, and memory for these.

Libraries that leave decoding, resizing and arithmetic to their user all get the same: simplejpeg, OpenCV, and a loop
that numba compiles. So their rows differ by the library alone.

A batch of 64 images has 38.5 MB. New memory of that size comes page by page from the kernel, which costs as much as
normalising into it, and more in shared memory. So libraries whose users make the batches themselves get memory that is
used again. FFCV and DALI do the same with theirs. As there, a batch is valid until the next one is requested.
"""

from __future__ import annotations

import importlib
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Pixels a side of the images that every loader delivers, normalised with the statistics of ImageNet.
SIZE = 224
# In units of 1, and as constants for `(pixels - PIXEL_MEAN) * PIXEL_SCALE` of shape `(3, 1, 1)`, pixels from 0 to 255.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PIXEL_MEAN = (255 * np.array(MEAN, np.float32)).reshape(3, 1, 1)
PIXEL_SCALE = (1 / (255 * np.array(STD, np.float32))).reshape(3, 1, 1)
# The bounds of the areas and aspect ratios of `draw_crop`, those of torchvision's RandomResizedCrop.
AREAS, ASPECTS, MAX_TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def list_photographs(path: str) -> tuple[list[Path], np.ndarray]:
    """Return the photographs in the folders below `path`, and the label of each: the number of its folder, int64."""
    files = sorted(Path(path).glob("*/*.jpg"))
    folders = {name: number for number, name in enumerate(sorted({file.parent.name for file in files}))}
    return files, np.array([folders[file.parent.name] for file in files], np.int64)


def decode(file: Path) -> np.ndarray:
    """Return the pixels of a photograph, uint8 of shape `(224, 224, 3)`, decoded and resized by Pillow.

    All loaders that keep pixels keep these, and pay as much for decoding them.
    """
    with Image.open(file) as photograph:
        return np.asarray(photograph.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def normalise(pixels: np.ndarray, image: np.ndarray, is_flipped: bool = False) -> None:
    """Normalise `pixels`, uint8 of shape `(224, 224, 3)`, into `image`, float32 of shape `(3, 224, 224)`."""
    from benchmarks.peers.normalise import normalise_planes

    normalise_planes(pixels, is_flipped, image, PIXEL_MEAN.reshape(3), PIXEL_SCALE.reshape(3))


def fill_from_jpegs(batch: np.ndarray, jpegs: Iterable[Any]) -> None:
    """Decode each of `jpegs` with simplejpeg, resize and normalise it into its image of `batch`."""
    import cv2
    import simplejpeg

    pixels = np.empty((SIZE, SIZE, 3), np.uint8)
    for image, jpeg in zip(batch, jpegs, strict=True):
        cv2.resize(simplejpeg.decode_jpeg(jpeg), (SIZE, SIZE), dst=pixels)
        normalise(pixels, image)


def fill_with_crops(batch: np.ndarray, jpegs: Iterable[Any]) -> None:
    """Do what `fill_from_jpegs` does with a random crop of each, and flip every other image on average."""
    import cv2
    import simplejpeg

    pixels = np.empty((SIZE, SIZE, 3), np.uint8)
    for image, jpeg in zip(batch, jpegs, strict=True):
        photograph = simplejpeg.decode_jpeg(jpeg)
        top, left, height, width = draw_crop(*photograph.shape[:2])
        cv2.resize(photograph[top : top + height, left : left + width], (SIZE, SIZE), dst=pixels)
        normalise(pixels, image, random.random() < 0.5)


def draw_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the first row, first column, height and width of a crop, drawn as torchvision's RandomResizedCrop does."""
    for _ in range(MAX_TRIES):
        area = height * width * random.uniform(*AREAS)
        aspect = math.exp(random.uniform(*map(math.log, ASPECTS)))
        rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            return random.randint(0, height - rows), random.randint(0, width - columns), rows, columns
    rows, columns = min(height, round(width / ASPECTS[0])), min(width, round(height * ASPECTS[1]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def fill_from_pixels(batch: np.ndarray, kept: Iterable[np.ndarray]) -> None:
    """Normalise each of `kept`, pixels of a photograph, into its image of `batch`."""
    for image, pixels in zip(batch, kept, strict=True):
        normalise(pixels, image)


def fill_from_bytes(batch: np.ndarray, kept: Iterable[Any]) -> None:
    """Do what `fill_from_pixels` does with buffers of their bytes, without a copy of these."""
    fill_from_pixels(batch, (np.frombuffer(each, np.uint8).reshape(SIZE, SIZE, 3) for each in kept))


def write_memmap(path: str, folder: str) -> None:
    """Write the pixels of the photographs below `path` to images.npy in `folder`, and their labels to labels.npy."""
    files, labels = list_photographs(path)
    images = np.lib.format.open_memmap(f"{folder}/images.npy", "w+", np.uint8, (len(files), SIZE, SIZE, 3))
    for number, file in enumerate(files):
        images[number] = decode(file)
    np.save(f"{folder}/labels.npy", labels)


def open_memmap(folder: str) -> tuple[np.ndarray, Fill]:
    """Return the labels that `write_memmap` wrote to `folder`, and what fills a batch with the pixels beside them."""
    images, labels = np.load(f"{folder}/images.npy", mmap_mode="r"), np.load(f"{folder}/labels.npy")
    return labels, lambda batch, indices: fill_from_pixels(batch, (images[index] for index in indices))


def open_images(path: str, fill: Fill, read: Callable[[Path], Any] = Path.read_bytes) -> tuple[np.ndarray, Fill]:
    """Return the labels of the photographs below `path`, and `fill` for indices instead of what `read` returns."""
    files, labels = list_photographs(path)
    return labels, lambda batch, indices: fill(batch, (read(files[index]) for index in indices))


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


# Writes images into a batch, called with it and what says which: mostly the indices of its records.
Fill = Callable[[np.ndarray, Any], None]


class FilledBatches(ReusedBatches):
    """Batches of images, which `fill` writes, and of labels, given for all records as int64."""

    def __init__(self, labels: np.ndarray, fill: Fill, batch_size: int) -> None:
        super().__init__(batch_size)
        self.labels = labels
        self._fill = fill

    def load(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a batch of the records with these indices, which is to be given back."""
        batch = self.take(len(indices))
        self._fill(batch, indices)
        return batch, self.labels[indices]


class SharedBatches:
    """Shared memory for the batches of a torch DataLoader's workers. Each worker writes into its own batches in turn.

    A tensor that is not in shared memory is copied there when a worker sends it, and both processes map new pages for
    it: "Reuse buffers passed through a Queue", docs.pytorch.org/docs/stable/notes/multiprocessing.html.

    Parameters
    ----------
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


# Declarations of operators go when their library does.
DECLARATIONS: list[Any] = []


def import_torchvision() -> None:
    """Import torchvision beside a torch for the CPU alone.

    PyPI's torchvision is built for CUDA. Without CUDA its operators do not load, and its import ends at `nms` and
    `qnms`, which it registers in any case. Nothing here calls them, so it is enough to declare them.
    """
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARATIONS.append(library)


class ReadAhead:
    """Batches of an epoch in random order that threads load ahead, for libraries without a loader."""

    def __init__(self, labels: np.ndarray, fill: Fill, batch_size: int, workers: int, ahead: int) -> None:
        import cv2

        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        self._batch_size, self._ahead = batch_size, ahead
        self._batches, self._pool = FilledBatches(labels, fill, batch_size), ThreadPoolExecutor(workers)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.random.default_rng().permutation(len(self._batches.labels))
        left = deque(order[start : start + self._batch_size] for start in range(0, len(order), self._batch_size))
        ahead = deque(self._pool.submit(self._batches.load, left.popleft()) for _ in range(min(self._ahead, len(left))))
        while ahead:
            batch, labels = ahead.popleft().result()
            if left:
                ahead.append(self._pool.submit(self._batches.load, left.popleft()))
            yield batch, labels
            self._batches.give_back(batch)
