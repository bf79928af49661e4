"""Compare loaders with the bound of what they do: `python -m benchmarks.studies.bounds CASE`.

Each case has arms that do the same work: ours, code that a user would write instead, and a bound that no loader of that
work can pass. All run in one process, in literal `for` loops, one epoch each in a drawn order in every round. Ratios
are rates, over those of ours.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numba
import numpy as np
import simplejpeg
import torch
from PIL import Image
from rich.table import Table

import etl
import presave
from benchmarks.console import print_table, wide_console
from benchmarks.datasets import SEED, find_photographs
from benchmarks.measuring.statistics import ratio_intervals
from benchmarks.suite import in_rounds

PHOTOGRAPHS, BATCH, SIZE, STORED = 2048, 64, 224, 256
LARGE, LARGE_SIZE = 64, (3000, 4000)
THREADS, AHEAD = 2, 3
OURS = "ours"
# Returns what a `for` loop goes through in one epoch.
Arm = Callable[[], Iterable[Any]]


def crops(exits: ExitStack) -> dict[str, Arm]:
    """Decode photographs, crop them at random, resize, flip and normalise."""
    folder = find_photographs(PHOTOGRAPHS)
    ours, whole = (
        exits.enter_context(
            etl.AsyncIterator(
                raw(folder, etl.Pipeline([etl.stages.Decode("turbo"), *augmentation(crop)])), threads=THREADS
            )
        )
        for crop in (etl.stages.RandomResizedCrop, CropOfWhole)
    )
    pool = exits.enter_context(ThreadPoolExecutor(THREADS))
    paths = sorted(folder.rglob("*.jpg"))
    files = [path.read_bytes() for path in paths]
    return {
        OURS: lambda: ours,
        "ours, whole decoded": lambda: whole,
        "a pool of threads": lambda: batches_of_a_user(pool, len(paths), lambda row: decoded(paths[row].read_bytes())),
        "decoder alone": lambda: pool.map(lambda part: [decoded(each).size for each in part], chunks(files)),
    }


def large(exits: ExitStack) -> dict[str, Arm]:
    """Scale photographs of 12 megapixels while they are decoded."""
    folder = large_photographs(Path(exits.enter_context(tempfile.TemporaryDirectory())))
    at_least = (SIZE, SIZE)
    stages: list[Any] = [
        etl.stages.Decode("turbo", at_least),
        etl.stages.Resize(SIZE, SIZE, "opencv"),
        etl.stages.ChannelsFirst(),
        etl.stages.Normalise(),
    ]
    ours = exits.enter_context(etl.AsyncIterator(raw(folder, etl.Pipeline(stages), 8), threads=THREADS))
    pool = exits.enter_context(ThreadPoolExecutor(THREADS))
    paths = sorted(folder.rglob("*.jpg"))
    files = [path.read_bytes() for path in paths]
    loader: Any = torch.utils.data.DataLoader(
        ScaledPhotographs(paths), 8, shuffle=True, num_workers=THREADS, persistent_workers=True
    )
    scaled = functools.partial(simplejpeg.decode_jpeg, colorspace="RGB", min_height=SIZE, min_width=SIZE, min_factor=1)
    eighth = functools.partial(scaled, min_height=LARGE_SIZE[0] // 8, min_width=LARGE_SIZE[1] // 8)
    return {
        OURS: lambda: ours,
        "DataLoader, min_height": lambda: loader,
        "decoder alone, min_height": lambda: pool.map(
            lambda part: [scaled(each).size for each in part], chunks(files, 8)
        ),
        "decoder alone, 1/8": lambda: pool.map(lambda part: [eighth(each).size for each in part], chunks(files, 8)),
    }


def stores(exits: ExitStack) -> dict[str, Arm]:
    """Crop pixels at random that were stored at 256 x 256."""
    folder = find_photographs(PHOTOGRAPHS)
    pipeline = etl.Pipeline([etl.stages.Decode("turbo"), etl.stages.Resize(STORED, STORED, "opencv"), *augmentation()])
    path = Path(exits.enter_context(tempfile.TemporaryDirectory())) / "store"
    presave.write(path, etl.records(etl.ImageFolder(folder), pipeline.until("resize"))).close()
    store = exits.enter_context(presave.open_store(path))
    images = store.gather(np.arange(len(store)))["features"]
    one = exits.enter_context(etl.PresavedIterator(path, pipeline.after("resize"), BATCH, shuffle=True, seed=SEED))
    two = exits.enter_context(
        etl.AsyncIterator(
            etl.PresavedIterator(path, pipeline.after("resize"), BATCH, shuffle=True, seed=SEED), threads=THREADS
        ),
    )
    pool = exits.enter_context(ThreadPoolExecutor(THREADS))
    return {
        OURS: lambda: one,
        "array in memory": lambda: batches_in_a_loop(len(images), images.__getitem__),
        "ours, two threads": lambda: two,
        "array in memory, two threads": lambda: batches_of_a_user(pool, len(images), images.__getitem__),
    }


def python(exits: ExitStack) -> dict[str, Arm]:
    """Load a map-style dataset whose records take 1 ms of Python each, in two processes."""
    paths = sorted(find_photographs(PHOTOGRAPHS).rglob("*.jpg"))[: PHOTOGRAPHS // 2]
    dataset = PhotographsInPython(paths)
    raw_records = etl.RawIterator(etl.MapDataset(dataset), etl.Pipeline([]), BATCH, shuffle=True, seed=SEED)
    ours = exits.enter_context(etl.AsyncIterator(raw_records, workers="process", processes=THREADS))
    loader: Any = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=THREADS, persistent_workers=True
    )
    pool = exits.enter_context(multiprocessing.get_context("fork").Pool(THREADS, DROPPED.append, (dataset,)))
    parts = chunks(range(len(dataset)), BATCH // 4)
    return {
        OURS: lambda: ours,
        "DataLoader": lambda: loader,
        "bare processes, records dropped": lambda: pool.imap_unordered(drop_records, parts),
    }


# The data set of a bare process.
DROPPED: list[PhotographsInPython] = []


def drop_records(rows: Sequence[int]) -> int:
    """Load records of `DROPPED` and keep none."""
    for row in rows:
        DROPPED[0][row]
    return len(rows)


CASES = {each.__name__: each for each in (crops, large, stores, python)}


class CropOfWhole(etl.stages.RandomResizedCrop):
    """A crop that no decoder knows, so that it decodes the whole photograph even if this machine has TurboJPEG 3."""


def augmentation(crop: type[etl.stages.RandomResizedCrop] = etl.stages.RandomResizedCrop) -> list[Any]:
    """Return the stages of a training epoch after the decoder."""
    return [
        crop(SIZE, SIZE, "opencv"),
        etl.stages.RandomFlip(),
        etl.stages.ChannelsFirst(),
        etl.stages.Normalise(),
    ]


def raw(folder: Path, pipeline: etl.Pipeline, batch_size: int = BATCH) -> etl.RawIterator:
    return etl.RawIterator(etl.ImageFolder(folder), pipeline, batch_size, shuffle=True, seed=SEED)


def decoded(file: bytes) -> np.ndarray:
    pixels: np.ndarray = simplejpeg.decode_jpeg(file, "RGB")
    return pixels


def chunks(items: Sequence[Any], size: int = BATCH // THREADS) -> list[Sequence[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def batches_in_a_loop(count: int, pixels_of: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
    """Yield batches as a plain loop makes them, all in the same memory."""
    memory = BUFFERS[0]
    for rows in chunks(np.random.default_rng().permutation(count).tolist(), BATCH):
        batch = memory[: len(rows)]
        for slot, row in enumerate(rows):
            fill(batch, slot, pixels_of(row))
        yield batch


def fill(batch: np.ndarray, slot: int, pixels: np.ndarray) -> None:
    """Crop, resize, flip and normalise an image into a row of a batch."""
    height, width = pixels.shape[:2]
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(LOG_RATIO[0], LOG_RATIO[1]))
        rows, columns = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if rows <= height and columns <= width:
            break
    else:
        rows, columns = height, width
    top, left = random.randint(0, height - rows), random.randint(0, width - columns)
    crop = cv2.resize(pixels[top : top + rows, left : left + columns], (SIZE, SIZE))
    flip_and_normalise(crop, random.random() < 0.5, batch[slot], OFFSET, SCALE)


def batches_of_a_user(
    pool: ThreadPoolExecutor, count: int, pixels_of: Callable[[int], np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield batches as a user makes them: by a pool of threads, some batches ahead."""
    order = np.random.default_rng().permutation(count).tolist()
    memory = itertools.cycle(BUFFERS)

    def load(batch: np.ndarray, slot: int, row: int) -> None:
        fill(batch, slot, pixels_of(row))

    def start(rows: Sequence[int]) -> tuple[np.ndarray, list[Any]]:
        batch = next(memory)[: len(rows)]
        return batch, [pool.submit(load, batch, slot, row) for slot, row in enumerate(rows)]

    left = iter(chunks(order, BATCH))
    waiting = deque(start(rows) for rows in itertools.islice(left, AHEAD + 1))
    while waiting:
        batch, futures = waiting.popleft()
        for future in futures:
            future.result()
        yield batch
        waiting.extend(start(rows) for rows in itertools.islice(left, 1))


LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))
# Memory of batches, used in turn: fresh memory costs a fault for each page.
BUFFERS = [np.zeros((BATCH, 3, SIZE, SIZE), np.float32) for _ in range(AHEAD + 2)]
OFFSET = (np.array([0.485, 0.456, 0.406]) * 255).astype(np.float32)
SCALE = (1 / (np.array([0.229, 0.224, 0.225]) * 255)).astype(np.float32)


@numba.njit(nogil=True, cache=True)
def flip_and_normalise(image: np.ndarray, flip: bool, out: np.ndarray, offset: np.ndarray, scale: np.ndarray) -> None:
    """Write an image of shape `(height, width, 3)` into `out` of shape `(3, height, width)`."""
    height, width, _ = image.shape
    for row in range(height):
        for column in range(width):
            target = width - 1 - column if flip else column
            for channel in range(3):
                out[channel, row, target] = (np.float32(image[row, column, channel]) - offset[channel]) * scale[channel]


class Photographs(torch.utils.data.Dataset[Any]):
    """A map-style dataset of a user."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)


class ScaledPhotographs(Photographs):
    """Photographs that are scaled by the decoder, resized and normalised."""

    def __getitem__(self, index: int) -> np.ndarray:
        cv2.setNumThreads(1)
        pixels = simplejpeg.decode_jpeg(
            self.paths[index].read_bytes(), "RGB", min_height=SIZE, min_width=SIZE, min_factor=1
        )
        out = np.empty((3, SIZE, SIZE), np.float32)
        flip_and_normalise(cv2.resize(pixels, (SIZE, SIZE)), False, out, OFFSET, SCALE)
        return out


class PhotographsInPython(Photographs):
    """Photographs that Pillow reads, and Python for 1 ms."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        pixels = np.array(Image.open(self.paths[index]).convert("RGB").resize((SIZE, SIZE)))
        until = time.thread_time() + 1e-3
        while time.thread_time() < until:
            pass
        return pixels, index


def large_photographs(folder: Path) -> Path:
    """Enlarge photographs to 12 megapixels, in a class folder."""
    (folder / "large" / "class").mkdir(parents=True)
    for number, path in enumerate(sorted(find_photographs(PHOTOGRAPHS).rglob("*.jpg"))[:LARGE]):
        image = Image.open(path).resize(LARGE_SIZE[::-1], Image.Resampling.BICUBIC)
        image.save(folder / "large" / "class" / f"{number}.jpg", quality=90)
    return folder / "large"


def go_through(arm: Arm) -> None:
    """Run one epoch of `arm`."""
    for _ in arm():
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    etl.kernels.load_kernels()
    cv2.setNumThreads(1)
    with ExitStack() as exits:
        epochs = {name: functools.partial(go_through, arm) for name, arm in CASES[options.case](exits).items()}
        for warm_up in epochs.values():
            warm_up()
        seconds = in_rounds(epochs, options.rounds)
    table = Table("arm", "s/epoch", "rate, of ours", "95% interval", title=CASES[options.case].__doc__)
    intervals = ratio_intervals({name: dict(enumerate(walls)) for name, walls in seconds.items()}, OURS)
    for name, walls in seconds.items():
        row = [name, f"{statistics.median(walls):.3f}"]
        if name in intervals:
            found = intervals[name]
            row += [
                f"{1 / found.estimate:.3f}",
                f"{1 / found.high:.3f} to {1 / found.low:.3f}" if found.low and found.high else "",
            ]
        table.add_row(*row)
    print_table(table, wide_console())


if __name__ == "__main__":
    main()
