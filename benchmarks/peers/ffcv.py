"""FFCV: docs.ffcv.io. Its loader compiles the pipeline with numba when it is made.

docs.ffcv.io/parameter_tuning.html advises for data that fit into memory, as here, `os_cache=True` (the default) and
`RANDOM` or `QUASI_RANDOM`, which "might be marginally better"; otherwise `os_cache=False`. These are its `settings`,
and how many batches are prepared ahead. `QUASI_RANDOM` takes records from as many pages at a time as two batches have
records.

docs.ffcv.io/bottleneck_doctor.html, under "CPU bottlenecks", advises writing one's own compiled operations. Channels
first needs one: FFCV's `ToTorchImage(channels_last=False)` transposes in torch, outside of the compiled code, and
copies twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.fields.rgb_image import ResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.operation import Operation
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.peers.loader import (
    AREAS,
    ASPECTS,
    MEAN,
    PIXEL_MEAN,
    PIXEL_SCALE,
    SIZE,
    STD,
    decode,
    list_photographs,
)


class NormaliseChannelsFirst(Operation):
    """Normalises and transposes in one pass, with the loop of the other rows: "Customization" in FFCV's docs."""

    def generate_code(self) -> Any:
        each = Compiler.get_iterator()
        mean0, mean1, mean2 = PIXEL_MEAN.reshape(3)
        scale0, scale1, scale2 = PIXEL_SCALE.reshape(3)

        def normalise(images: Any, batch: Any) -> Any:
            for number in each(len(images)):
                line, planes = images[number].reshape(-1), batch[number].reshape(3, -1)
                red, green, blue = planes[0], planes[1], planes[2]
                for pixel in range(len(red)):
                    red[pixel] = (np.float32(line[3 * pixel]) - mean0) * scale0
                    green[pixel] = (np.float32(line[3 * pixel + 1]) - mean1) * scale1
                    blue[pixel] = (np.float32(line[3 * pixel + 2]) - mean2) * scale2
            return batch[: len(images)]

        normalise.is_parallel = True
        return normalise

    def declare_state_and_memory(self, previous_state: Any) -> Any:
        shape, dtype = (3, SIZE, SIZE), np.dtype(np.float32)
        query = AllocationQuery(shape, dtype, previous_state.device)
        return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), query


def prepare_jpeg(path: str, folder: str) -> None:
    def read(file: Path) -> Image.Image:
        return Image.open(file).convert("RGB")

    _write(path, folder, read, RGBImageField(write_mode="jpg", jpeg_quality=90))


def load_jpeg(
    folder: str, batch_size: int, workers: int, batches_ahead: int = 3, os_cache: bool = True, order: str = "RANDOM"
) -> Any:
    class Resize(ResizedCropRGBImageDecoder):
        scale = ratio = None

        @property
        def get_crop_generator(self) -> Any:
            return lambda height, width, _scale, _ratio: (0, 0, height, width)

    image = [Resize((SIZE, SIZE)), NormaliseChannelsFirst(), ToTensor()]
    return _make_loader(folder, image, batch_size, workers, batches_ahead, os_cache, order)


def load_crops(
    folder: str, batch_size: int, workers: int, batches_ahead: int = 3, os_cache: bool = True, order: str = "RANDOM"
) -> Any:
    image = [
        RandomResizedCropRGBImageDecoder((SIZE, SIZE), AREAS, ASPECTS),
        RandomHorizontalFlip(),
        NormaliseChannelsFirst(),
        ToTensor(),
    ]
    return _make_loader(folder, image, batch_size, workers, batches_ahead, os_cache, order)


def prepare_pixels(path: str, folder: str) -> None:
    _write(path, folder, decode, RGBImageField(write_mode="raw"))


def load_channels_last(
    folder: str, batch_size: int, workers: int, batches_ahead: int = 3, os_cache: bool = True, order: str = "RANDOM"
) -> Any:
    normalise = NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32)
    image = [SimpleRGBImageDecoder(), normalise, ToTensor(), ToTorchImage()]
    return _make_loader(folder, image, batch_size, workers, batches_ahead, os_cache, order)


def load_channels_first(
    folder: str, batch_size: int, workers: int, batches_ahead: int = 3, os_cache: bool = True, order: str = "RANDOM"
) -> Any:
    image = [SimpleRGBImageDecoder(), NormaliseChannelsFirst(), ToTensor()]
    return _make_loader(folder, image, batch_size, workers, batches_ahead, os_cache, order)


def _write(path: str, folder: str, read: Callable[[Path], Any], field: Any) -> None:
    """Write what `read` returns for each photograph as this field, with its label."""

    class Photographs:
        def __init__(self) -> None:
            self.files, self.labels = list_photographs(path)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            return read(self.files[index]), int(self.labels[index])

    fields = {"image": field, "label": IntField()}
    DatasetWriter(f"{folder}/photographs.beton", fields, num_workers=1).from_indexed_dataset(Photographs())


def _make_loader(
    folder: str, image: list[Any], batch_size: int, workers: int, batches_ahead: int, os_cache: bool, order: str
) -> Any:
    """Return a loader with these operations on the images."""
    return Loader(
        f"{folder}/photographs.beton",
        batch_size=batch_size,
        num_workers=workers,
        order=OrderOption[order],
        os_cache=os_cache,
        batches_ahead=batches_ahead,
        drop_last=False,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )


load_jpeg.prepare = load_crops.prepare = prepare_jpeg
load_channels_last.prepare = load_channels_first.prepare = prepare_pixels

SETTINGS = {
    "workers": (1, 2, 3),
    "batches_ahead": (2, 3, 6),
    "os_cache": (True, False),
    "order": ("RANDOM", "QUASI_RANDOM"),
}
load_jpeg.settings = load_crops.settings = load_channels_last.settings = load_channels_first.settings = SETTINGS
