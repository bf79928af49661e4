"""tf.data: tensorflow.org/guide/data_performance: parallel `map`, `prefetch`, and arithmetic on whole batches.

Normalising is compiled by XLA (tensorflow.org/xla), which casts, transposes and scales in one pass; without XLA each of
these operations is a pass. Options (tensorflow.org/api_docs/python/tf/data/Options): one thread for each operation,
because `map` is the parallel one; no fixed order; and no tuning. All parallelism is set here, so there is nothing to
tune. With tuning an iterator ends only when its tuning thread next wakes up, 1.3, 2.5 or 5.1 s after its start: 1,600
images/s became 800.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PIXEL_MEAN, PIXEL_SCALE, PRESAVED, RAW, SIZE, Loader


class LoadRaw:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import tensorflow as tf

        def load(file: Any, number: Any) -> Any:
            # The accurate DCT, as libjpeg-turbo has it by default and all other loaders use it.
            pixels = tf.io.decode_jpeg(tf.io.read_file(file), channels=3, dct_method="INTEGER_ACCURATE")
            return tf.image.resize(pixels, (SIZE, SIZE)), number

        @tf.function(jit_compile=True)
        def normalise(pixels: Any, numbers: Any) -> Any:
            return (tf.transpose(pixels, (0, 3, 1, 2)) - PIXEL_MEAN) * PIXEL_SCALE, numbers

        files = [str(file) for file in sorted(Path(folder).glob("*/*.jpg"))]
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = False
        options.autotune.enabled = False
        self.dataset = (
            tf.data.Dataset.from_tensor_slices((files, range(len(files))))
            .shuffle(len(files))
            .map(load, num_parallel_calls=threads)
            .batch(batch_size)
            .map(normalise, num_parallel_calls=threads)
            .prefetch(3)
            .with_options(options)
        )

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()


def prepare_files(source: str, folder: str) -> None:
    for number, pixels in enumerate(np.load(source, mmap_mode="r")):
        pixels.tofile(f"{folder}/{number:06d}.pixels")


# A file for each photograph, so that names are shuffled: a TFRecord is shuffled in memory, from its beginning.
class LoadFiles:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import tensorflow as tf

        def read(file: Any, number: Any) -> Any:
            return tf.io.read_file(file), number

        def load(records: Any, numbers: Any) -> Any:
            return normalise(tf.io.decode_raw(records, tf.uint8)), numbers

        @tf.function(jit_compile=True)
        def normalise(pixels: Any) -> Any:
            pixels = tf.transpose(tf.reshape(pixels, (-1, SIZE, SIZE, 3)), (0, 3, 1, 2))
            return (tf.cast(pixels, tf.float32) - PIXEL_MEAN) * PIXEL_SCALE

        files = [str(file) for file in sorted(Path(folder).glob("*.pixels"))]
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = False
        options.autotune.enabled = False
        self.dataset = (
            tf.data.Dataset.from_tensor_slices((files, range(len(files))))
            .shuffle(len(files))
            .map(read, num_parallel_calls=threads)
            .batch(batch_size)
            .map(load, num_parallel_calls=threads)
            .prefetch(3)
            .with_options(options)
        )

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()


LOADERS = (
    Loader("tf.data", RAW, LoadRaw, imports=("tensorflow",), note="its own decoder"),
    Loader("tf.data, a file each", PRESAVED, LoadFiles, imports=("tensorflow",), prepare=prepare_files),
)
