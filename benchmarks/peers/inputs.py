"""What every loader is given: photographs whose label is their number, and the pixels of the same photographs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import etl
from benchmarks.peers.imagenet import SIZE
from benchmarks.peers.same_work import describe


@dataclass(frozen=True)
class Inputs:
    """Paths of one set of photographs.

    `photographs` has a sub-folder for each, `000017/photograph.jpg`, so that all that take the folder for the class
    give the number for the label; `images` is a .npy of uint8, shape `(records, 224, 224, 3)`; `expected` is what
    `same_work.describe` says of them normalised.
    """

    photographs: str
    images: str
    expected: str
    records: int


def make_inputs(source: Path, folder: Path) -> Inputs:
    """Make them in `folder` from the image folder `source`, unless they are there."""
    files = etl.ImageFolder(source).files
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for number, file in enumerate(files):
            target = unfinished / "photographs" / f"{number:06d}" / "photograph.jpg"
            target.parent.mkdir(parents=True)
            shutil.copyfile(source / file, target)
        _decode(unfinished)
        os.rename(unfinished, folder)
    return Inputs(
        photographs=str(folder / "photographs"),
        images=str(folder / "images.npy"),
        expected=str(folder / "expected.npy"),
        records=len(files),
    )


def _decode(folder: Path) -> None:
    source, pipeline = etl.ImageFolder(folder / "photographs"), etl.image_pipeline(size=SIZE)
    records = etl.records(source, pipeline.until("resize"))
    finish = pipeline.after("resize")
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (len(source), SIZE, SIZE, 3))
    expected = []
    for number in range(len(source)):
        record = records[number]
        images[number] = record["features"]
        expected.append(describe(finish(record)["features"][np.newaxis])[0])
    images.flush()
    np.save(folder / "expected.npy", np.stack(expected))
