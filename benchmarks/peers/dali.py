"""NVIDIA DALI on the CPU: docs.nvidia.com/deeplearning/dali.

docs.nvidia.com/deeplearning/dali/user-guide/docs/advanced_topics_performance_tuning.html says: "For typical use cases,
the default DALI configuration performs well out of the box". For the rest it advises `set_affinity` for work that is
bound by the CPU, and deeper queues of the pipeline and of the readers. These are its `settings`, and reading without a
memory map. Pipelines are asynchronous, pipelined and dynamic by default. Tried without effect on CPU time:
`use_fast_idct`, the experimental decoder, and the reader's `cache_header_information`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from benchmarks.peers.loader import AREAS, ASPECTS, MAX_TRIES, MEAN, SIZE, STD, decode, list_photographs

# For `set_affinity`: the CPUs of this process, since there is no GPU whose nearest CPUs DALI could ask for.
os.environ["DALI_AFFINITY_MASK"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))


class LoadRaw:
    takes_crops = False

    def __init__(
        self,
        path: str,
        batch_size: int,
        workers: int,
        prefetch_queue_depth: int = 2,
        reader_queue_depth: int = 1,
        dont_use_mmap: bool = False,
        set_affinity: bool = False,
    ) -> None:
        reading = {"prefetch_queue_depth": reader_queue_depth, "dont_use_mmap": dont_use_mmap}

        @pipeline_def(
            batch_size=batch_size,
            num_threads=workers,
            device_id=None,
            prefetch_queue_depth=prefetch_queue_depth,
            set_affinity=set_affinity,
        )
        def photographs() -> Any:
            encoded, labels = fn.readers.file(file_root=path, shuffle_after_epoch=True, name="reader", **reading)
            if self.takes_crops:
                pixels = fn.decoders.image_random_crop(
                    encoded, device="cpu", random_area=AREAS, random_aspect_ratio=ASPECTS, num_attempts=MAX_TRIES
                )
            else:
                pixels = fn.decoders.image(encoded, device="cpu")
            pixels = fn.resize(pixels, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=False)
            mean, std = ([255 * value for value in values] for values in (MEAN, STD))
            mirror = fn.random.coin_flip(probability=0.5) if self.takes_crops else 0
            return fn.crop_mirror_normalize(pixels, mean=mean, std=std, output_layout="CHW", mirror=mirror), labels

        self.pipeline = photographs()
        self.pipeline.build()
        self.batches = -(-self.pipeline.reader_meta("reader")["epoch_size"] // batch_size)

    def __iter__(self) -> Any:
        for _ in range(self.batches):
            images, labels = self.pipeline.run()
            yield np.asarray(images.as_tensor()), np.asarray(labels.as_tensor())[:, 0].astype(np.int64)


class LoadCrops(LoadRaw):
    takes_crops = True


class LoadNpy:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        for number, (file, label) in enumerate(zip(*list_photographs(path), strict=True)):
            np.save(f"{folder}/{number:06d}-{label:06d}.npy", decode(file))

    def __init__(
        self,
        folder: str,
        batch_size: int,
        workers: int,
        prefetch_queue_depth: int = 2,
        reader_queue_depth: int = 1,
        dont_use_mmap: bool = False,
        set_affinity: bool = False,
    ) -> None:
        reading = {"prefetch_queue_depth": reader_queue_depth, "dont_use_mmap": dont_use_mmap}

        @pipeline_def(
            batch_size=batch_size,
            num_threads=workers,
            device_id=None,
            prefetch_queue_depth=prefetch_queue_depth,
            set_affinity=set_affinity,
        )
        def photographs() -> Any:
            pixels = fn.readers.numpy(
                file_root=folder, file_filter="*.npy", shuffle_after_epoch=True, name="reader", **reading
            )
            pixels = fn.reinterpret(pixels, layout="HWC")
            mean, std = ([255 * value for value in values] for values in (MEAN, STD))
            normalised = fn.crop_mirror_normalize(pixels, mean=mean, std=std, output_layout="CHW")
            return normalised, fn.get_property(pixels, key="source_info")

        self.pipeline = photographs()
        self.pipeline.build()
        self.batches = -(-self.pipeline.reader_meta("reader")["epoch_size"] // batch_size)

    def __iter__(self) -> Any:
        for _ in range(self.batches):
            images, names = self.pipeline.run()
            digits = np.asarray(names.as_tensor())[:, -10:-4] - ord("0")  # names are equally long
            yield np.asarray(images.as_tensor()), digits @ 10 ** np.arange(6)[::-1]


SETTINGS = {
    "workers": (1, 2, 3),
    "prefetch_queue_depth": (2, 3, 4),
    "reader_queue_depth": (1, 2),
    "dont_use_mmap": (False, True),
    "set_affinity": (False, True),
}
LoadRaw.settings = LoadNpy.settings = SETTINGS
