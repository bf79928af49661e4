"""One sample of writing photographs into a data set, by one writer, in this process or in one of its own.

Every writer gets the same records, which the same code decodes and resizes while it writes. Each is used as its
documentation recommends for pixels that need no further decoding.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import etl
import presave

# Writes nothing: the decoder alone is the limit of the others.
DECODER = "decoder"
# Writers, and the module that each needs besides the project's own.
MODULES = {DECODER: None, "presave": None, "mosaicml": "streaming", "ffcv": "ffcv"}
WRITERS = tuple(MODULES)
JOBS = (1, 2)
WARM_UP_RECORDS = 8
STAGE = "resize"


@dataclass(frozen=True)
class Photographs:
    """The first `records` photographs of `folder`, which are resized to a square of `image_size` pixels a side."""

    folder: str
    image_size: int
    records: int


class DecodedPhotographs:
    """The records that all writers get: features, uint8 of shape `(height, width, 3)`, and label."""

    thread_safe = True

    def __init__(self, photographs: Photographs) -> None:
        self._source = etl.ImageFolder(photographs.folder)
        pipeline = etl.image_pipeline(size=photographs.image_size)
        self._records = etl.records(self._source, pipeline.until(STAGE))
        self._count = photographs.records
        self.shape = (photographs.image_size, photographs.image_size, 3)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._records[index]

    def warm_up(self) -> None:
        """Read the files into the page cache, and load the decoder."""
        for index in range(len(self)):
            self._source[index]
        for index in range(min(WARM_UP_RECORDS, len(self))):
            self[index]


class Pairs:
    """The records as pairs of image and label, as FFCV's writer takes them."""

    def __init__(self, records: DecodedPhotographs) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        record = self._records[index]
        return record["features"], record["label"]


def is_importable(writer: str) -> bool:
    """Return whether this interpreter has the module that `writer` needs."""
    module = MODULES[writer]
    return module is None or importlib.util.find_spec(module) is not None


def take_sample(writer: str, jobs: int, photographs: Photographs, folder: str) -> dict[str, float]:
    """Write the photographs with one of `WRITERS` to a new folder, which is deleted again.

    Returns
    -------
    A dictionary: `seconds` until the writer was done, `durable_seconds` until all of it was on the disk, and `nbytes`.

    Raises
    ------
    ImportError
        If the writer is not installed.
    """
    records = DecodedPhotographs(photographs)
    records.warm_up()
    write = {DECODER: _decode, "presave": _presave, "mosaicml": _prepare_mosaicml, "ffcv": _prepare_ffcv}[writer](
        records, jobs
    )
    with tempfile.TemporaryDirectory(dir=folder) as target:
        started = time.perf_counter()
        write(Path(target))
        seconds = time.perf_counter() - started
        files = [path for path in Path(target).rglob("*") if path.is_file()]
        for path in files:
            _flush(path)
        durable = time.perf_counter() - started
        return {"seconds": seconds, "durable_seconds": durable, "nbytes": sum(path.stat().st_size for path in files)}


def _decode(records: DecodedPhotographs, jobs: int) -> Callable[[Path], None]:
    def read(index: int) -> None:
        records[index]

    def decode(_: Path) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            for _result in pool.map(read, range(len(records))):
                pass

    return decode


def _presave(records: DecodedPhotographs, jobs: int) -> Callable[[Path], None]:
    return lambda target: presave.write(target / "photographs.store", records, jobs=jobs).close()


def _prepare_mosaicml(records: DecodedPhotographs, jobs: int) -> Callable[[Path], None]:
    merge_index = import_module("streaming.base.util").merge_index

    def write(target: Path) -> None:
        if jobs == 1:
            _write_mosaicml((str(target), records, 0, len(records)))
            return
        # docs.mosaicml.com/projects/streaming, "Parallel dataset conversion": a folder for each process, then merged.
        cuts = [len(records) * job // jobs for job in range(jobs + 1)]
        parts = [(str(target / f"{job:05d}"), records, cuts[job], cuts[job + 1]) for job in range(jobs)]
        with Pool(jobs) as pool:
            for _result in pool.imap(_write_mosaicml, parts):
                pass
        merge_index(str(target), keep_local=True)

    return write


def _write_mosaicml(part: tuple[str, DecodedPhotographs, int, int]) -> None:
    target, records, first, last = part
    columns = {"features": f"ndarray:uint8:{','.join(map(str, records.shape))}", "label": "int"}
    with import_module("streaming").MDSWriter(out=target, columns=columns) as writer:
        for index in range(first, last):
            writer.write(records[index])


def _prepare_ffcv(records: DecodedPhotographs, jobs: int) -> Callable[[Path], None]:
    fields, writers = import_module("ffcv.fields"), import_module("ffcv.writer")

    def write(target: Path) -> None:
        columns = {"image": fields.RGBImageField(write_mode="raw"), "label": fields.IntField()}
        writer = writers.DatasetWriter(str(target / "photographs.beton"), columns, num_workers=jobs)
        writer.from_indexed_dataset(Pairs(records))

    return write


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """Read the arguments of `take_sample` from standard input, as JSON, and print its metrics as JSON."""
    # Keep the output of writers, such as progress bars, out of the answer.
    printed = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    photographs = Photographs(**request["photographs"])
    metrics = None
    if is_importable(request["writer"]):
        metrics = take_sample(request["writer"], request["jobs"], photographs, request["folder"])
    os.write(printed, json.dumps(metrics).encode())
