"""WebDataset: github.com/webdataset/webdataset. The workers make the batches, which its FAQ calls more efficient, and
write them into memory that the training process shares (`SharedBatches`).

webdataset.github.io/webdataset/sharding/ advises many shards, which the workers share, `shardshuffle`, and batches that
are made in the data set, before the DataLoader. All are followed here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import torch
import webdataset

from benchmarks.peers.loader import Fill, SharedBatches, decode, fill_from_bytes, fill_from_jpegs, list_photographs

# Workers take whole shards. With eight, equally full, two or four workers have equal work.
SHARDS = 8
SETTINGS = {"workers": (1, 2, 4), "prefetch_factor": (1, 2, 4)}


def prepare_jpeg(path: str, folder: str) -> None:
    _write(path, folder, lambda file: {"jpg": file.read_bytes()})


def load_jpeg(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2) -> Any:
    return _make_loader(folder, "jpg", fill_from_jpegs, batch_size, workers, prefetch_factor)


def prepare_pixels(path: str, folder: str) -> None:
    _write(path, folder, lambda file: {"pixels": decode(file).tobytes()})


def load_pixels(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2) -> Any:
    return _make_loader(folder, "pixels", fill_from_bytes, batch_size, workers, prefetch_factor)


def _write(path: str, folder: str, read: Callable[[Path], dict[str, bytes]]) -> None:
    """Write what `read` returns for each photograph, with its label."""
    files, labels = list_photographs(path)
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(files) // SHARDS)) as writer:
        for number, file in enumerate(files):
            writer.write({"__key__": f"{number:06d}", **read(file), "cls": int(labels[number])})


def _make_loader(folder: str, kept: str, fill: Fill, batch_size: int, workers: int, prefetch_factor: int) -> Any:
    """Return a loader of the batches into which `fill` writes images, `kept` with a label each."""
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        fill(batch.numpy(), (image for image, _label in records))
        return batch, torch.tensor([int(label) for _image, label in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple(kept, "cls")
    dataset = dataset.batched(batch_size, collation_fn=collate)
    return webdataset.WebLoader(
        dataset, batch_size=None, num_workers=workers, prefetch_factor=prefetch_factor, persistent_workers=True
    )


load_jpeg.prepare, load_pixels.prepare = prepare_jpeg, prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
