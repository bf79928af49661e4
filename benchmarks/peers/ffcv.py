"""FFCV: docs.ffcv.io. Its loader compiles the pipeline with numba when it is made.

Its "Bottleneck Doctor", under "CPU bottlenecks", advises writing one's own compiled operations. Channels first needs
one: FFCV's `ToTorchImage(channels_last=False)` transposes in torch, outside of the compiled code, and copies twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import MEAN, PIXEL_TABLE, PRESAVED, RAW, SIZE, STD, Loader


def channels_first() -> Any:
    """Return an operation that normalises by a table, as FFCV does, and transposes: "Customization" in its docs."""
    from dataclasses import replace

    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler
    from ffcv.pipeline.operation import Operation

    class NormaliseChannelsFirst(Operation):
        def generate_code(self) -> Any:
            each, table = Compiler.get_iterator(), np.ascontiguousarray(PIXEL_TABLE)

            def normalise(images: Any, batch: Any) -> Any:
                for number in each(len(images)):
                    pixels = images[number].reshape(-1, 3)
                    for channel in range(3):
                        plane, values = batch[number, channel].reshape(-1), table[channel]
                        for pixel in range(len(plane)):
                            plane[pixel] = values[pixels[pixel, channel]]
                return batch[: len(images)]

            normalise.is_parallel = True  # type: ignore[attr-defined]
            return normalise

        def declare_state_and_memory(self, previous_state: Any) -> Any:
            shape, dtype = (3, SIZE, SIZE), np.dtype(np.float32)
            query = AllocationQuery(shape, dtype, previous_state.device)
            return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), query

    return NormaliseChannelsFirst()


def prepare_jpeg(source: str, folder: str) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Photographs:
        def __init__(self) -> None:
            self.files = sorted(Path(source).glob("*/*.jpg"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            return Image.open(self.files[index]).convert("RGB"), index

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "number": IntField()}
    DatasetWriter(f"{folder}/photographs.beton", fields, num_workers=1).from_indexed_dataset(Photographs())


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    from ffcv.fields.decoders import IntDecoder
    from ffcv.fields.rgb_image import ResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Squeeze, ToTensor

    class Resize(ResizedCropRGBImageDecoder):
        scale = ratio = None

        @property
        def get_crop_generator(self) -> Any:
            return lambda height, width, _scale, _ratio: (0, 0, height, width)

    image = [Resize((SIZE, SIZE)), channels_first(), ToTensor()]
    return Loader(
        f"{folder}/photographs.beton",
        batch_size=batch_size,
        num_workers=threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "number": [IntDecoder(), ToTensor(), Squeeze()]},
    )


def prepare_pixels(source: str, folder: str) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    class Photographs:
        def __init__(self) -> None:
            self.images = np.load(source, mmap_mode="r")

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> Any:
            return self.images[index], index

    fields = {"image": RGBImageField(write_mode="raw"), "number": IntField()}
    DatasetWriter(f"{folder}/photographs.beton", fields, num_workers=1).from_indexed_dataset(Photographs())


def load_channels_last(folder: str, batch_size: int, threads: int) -> Any:
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, Squeeze, ToTensor, ToTorchImage

    normalise = NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32)
    image = [SimpleRGBImageDecoder(), normalise, ToTensor(), ToTorchImage()]
    return Loader(
        f"{folder}/photographs.beton",
        batch_size=batch_size,
        num_workers=threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "number": [IntDecoder(), ToTensor(), Squeeze()]},
    )


def load_channels_first(folder: str, batch_size: int, threads: int) -> Any:
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Squeeze, ToTensor

    image = [SimpleRGBImageDecoder(), channels_first(), ToTensor()]
    return Loader(
        f"{folder}/photographs.beton",
        batch_size=batch_size,
        num_workers=threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "number": [IntDecoder(), ToTensor(), Squeeze()]},
    )


IMPORTS = ("ffcv.loader", "ffcv.transforms", "ffcv.fields.decoders", "ffcv.fields.rgb_image")

LOADERS = (
    Loader(
        "FFCV, JPEG",
        RAW,
        load_jpeg,
        imports=IMPORTS,
        prepare=prepare_jpeg,
        note="encoded again at quality 90, decoded with the fast DCT, resized by area",
    ),
    Loader(
        "FFCV, channels last",
        PRESAVED,
        load_channels_last,
        imports=IMPORTS,
        prepare=prepare_pixels,
        channels_last=True,
        note="its own layout, not the one asked for",
    ),
    Loader("FFCV, channels first", PRESAVED, load_channels_first, imports=IMPORTS, prepare=prepare_pixels),
)
