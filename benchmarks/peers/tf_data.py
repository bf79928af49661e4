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
import tensorflow as tf

from benchmarks.peers.loader import PIXEL_MEAN, PIXEL_SCALE, SIZE, decode, list_photographs


class LoadRaw:
    def __init__(self, path: str, batch_size: int, workers: int) -> None:
        def load(file: Any, label: Any) -> Any:
            # The accurate DCT, as libjpeg-turbo has it by default and all other loaders use it.
            pixels = tf.io.decode_jpeg(tf.io.read_file(file), channels=3, dct_method="INTEGER_ACCURATE")
            return tf.image.resize(pixels, (SIZE, SIZE)), label

        @tf.function(jit_compile=True)
        def normalise(pixels: Any, labels: Any) -> Any:
            return (tf.transpose(pixels, (0, 3, 1, 2)) - PIXEL_MEAN) * PIXEL_SCALE, labels

        files, labels = list_photographs(path)
        options = tf.data.Options()
        options.threading.private_threadpool_size = workers
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = False
        options.autotune.enabled = False
        self.dataset = (
            tf.data.Dataset.from_tensor_slices(([str(file) for file in files], labels))
            .shuffle(len(files))
            .map(load, num_parallel_calls=workers)
            .batch(batch_size)
            .map(normalise, num_parallel_calls=workers)
            .prefetch(3)
            .with_options(options)
        )

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()


# A file for each photograph, so that names are shuffled: a TFRecord is shuffled in memory, from its beginning.
class LoadFiles:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        files, labels = list_photographs(path)
        for number, file in enumerate(files):
            decode(file).tofile(f"{folder}/{number:06d}.pixels")
        np.save(f"{folder}/labels.npy", labels)

    def __init__(self, folder: str, batch_size: int, workers: int) -> None:
        def read(file: Any, label: Any) -> Any:
            return tf.io.read_file(file), label

        def load(records: Any, labels: Any) -> Any:
            return normalise(tf.io.decode_raw(records, tf.uint8)), labels

        @tf.function(jit_compile=True)
        def normalise(pixels: Any) -> Any:
            pixels = tf.transpose(tf.reshape(pixels, (-1, SIZE, SIZE, 3)), (0, 3, 1, 2))
            return (tf.cast(pixels, tf.float32) - PIXEL_MEAN) * PIXEL_SCALE

        files, labels = sorted(Path(folder).glob("*.pixels")), np.load(f"{folder}/labels.npy")
        options = tf.data.Options()
        options.threading.private_threadpool_size = workers
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = False
        options.autotune.enabled = False
        self.dataset = (
            tf.data.Dataset.from_tensor_slices(([str(file) for file in files], labels))
            .shuffle(len(files))
            .map(read, num_parallel_calls=workers)
            .batch(batch_size)
            .map(load, num_parallel_calls=workers)
            .prefetch(3)
            .with_options(options)
        )

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()
