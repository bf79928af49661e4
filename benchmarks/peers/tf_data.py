"""tf.data: tensorflow.org/guide/data_performance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader


class LoadRaw:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import tensorflow as tf

        def load(file: Any, number: Any) -> Any:
            pixels = tf.io.decode_jpeg(tf.io.read_file(file), channels=3, dct_method="INTEGER_ACCURATE")
            pixels = tf.transpose(tf.image.resize(pixels, (SIZE, SIZE)), (2, 0, 1))
            return (pixels - PIXEL_MEAN) * PIXEL_SCALE, number

        files = [str(file) for file in sorted(Path(folder).glob("*/*.jpg"))]
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        self.dataset = (
            tf.data.Dataset.from_tensor_slices((files, range(len(files))))
            .shuffle(len(files))
            .map(load, num_parallel_calls=threads)
            .batch(batch_size)
            .prefetch(tf.data.AUTOTUNE)
            .with_options(options)
        )

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()


def prepare_tfrecord(source: str, folder: str) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(f"{folder}/photographs.tfrecord") as writer:
        for number, pixels in enumerate(np.load(source, mmap_mode="r")):
            feature = {
                "pixels": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels.tobytes()])),
                "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


class LoadTFRecord:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import tensorflow as tf

        fields = {"pixels": tf.io.FixedLenFeature([], tf.string), "number": tf.io.FixedLenFeature([], tf.int64)}

        def load(serialised: Any) -> Any:
            batch = tf.io.parse_example(serialised, fields)
            pixels = tf.reshape(tf.io.decode_raw(batch["pixels"], tf.uint8), (-1, SIZE, SIZE, 3))
            pixels = tf.cast(tf.transpose(pixels, (0, 3, 1, 2)), tf.float32)
            return (pixels - PIXEL_MEAN) * PIXEL_SCALE, batch["number"]

        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        self.dataset = (
            tf.data.TFRecordDataset(f"{folder}/photographs.tfrecord")
            .shuffle(2048)
            .batch(batch_size)
            .map(load, num_parallel_calls=threads)
            .prefetch(tf.data.AUTOTUNE)
            .with_options(options)
        )

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()


LOADERS = (
    Loader("tf.data", RAW, LoadRaw, imports=("tensorflow",), note="its own decoder"),
    Loader(
        "tf.data, TFRecord",
        PRESAVED,
        LoadTFRecord,
        imports=("tensorflow",),
        prepare=prepare_tfrecord,
        note="shuffled in a buffer of 2,048",
    ),
)
