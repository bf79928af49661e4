"""NVIDIA DALI on the CPU: docs.nvidia.com/deeplearning/dali.

Its page "Performance Tuning" says: "For typical use cases, the default DALI configuration performs well out of the
box". Tried without effect on CPU time: `set_affinity`, `prefetch_queue_depth`, `use_fast_idct`, `exec_dynamic`, the
experimental decoder, and the reader's `cache_header_information`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from benchmarks.peers.loader import MEAN, SIZE, STD, decode, list_photographs


class LoadRaw:
    def __init__(self, path: str, batch_size: int, workers: int) -> None:
        @pipeline_def(batch_size=batch_size, num_threads=workers, device_id=None)
        def photographs() -> Any:
            encoded, labels = fn.readers.file(file_root=path, shuffle_after_epoch=True, name="reader")
            pixels = fn.decoders.image(encoded, device="cpu")
            pixels = fn.resize(pixels, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=False)
            mean, std = ([255 * value for value in values] for values in (MEAN, STD))
            return fn.crop_mirror_normalize(pixels, mean=mean, std=std, output_layout="CHW"), labels

        self.pipeline = photographs()
        self.pipeline.build()
        self.batches = -(-self.pipeline.reader_meta("reader")["epoch_size"] // batch_size)

    def __iter__(self) -> Any:
        for _ in range(self.batches):
            images, labels = self.pipeline.run()
            yield np.asarray(images.as_tensor()), np.asarray(labels.as_tensor())[:, 0].astype(np.int64)


class LoadNpy:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        for number, (file, label) in enumerate(zip(*list_photographs(path), strict=True)):
            np.save(f"{folder}/{number:06d}-{label}.npy", decode(file))

    def __init__(self, folder: str, batch_size: int, workers: int) -> None:
        @pipeline_def(batch_size=batch_size, num_threads=workers, device_id=None)
        def photographs() -> Any:
            pixels = fn.readers.numpy(file_root=folder, file_filter="*.npy", shuffle_after_epoch=True, name="reader")
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
            labels = [int(Path(bytes(np.asarray(name)).decode()).stem.partition("-")[2]) for name in names]
            yield np.asarray(images.as_tensor()), np.array(labels)
