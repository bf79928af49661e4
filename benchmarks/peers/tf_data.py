"""tf.data: tensorflow.org/guide/data_performance: parallel `map`, `prefetch`, and arithmetic on whole batches.

The guide advises `tf.data.AUTOTUNE` for `map` and `prefetch`, the default here; `settings` have fixed values, too. The
options (tensorflow.org/api_docs/python/tf/data/Options) are a private pool with one thread a worker, one thread for
each operation, because `map` is the parallel one, and no fixed order of the records in an epoch. With AUTOTUNE an
iterator ends only when its tuning thread next wakes up, 1.3, 2.5 or 5.1 s after its start: 1,600 images/s became 800.
So the data set repeats, and one iterator serves all epochs, as `Model.fit` does it with `steps_per_epoch`.

Normalising is compiled by XLA (tensorflow.org/xla), which casts, transposes and scales in one pass; without XLA each of
these operations is a pass.

tensorflow.org/tutorials/load_data/tfrecord advises TFRecords, which may hold any bytes, in at least ten files for a
host, of at least 10 MB each. A file is read from its beginning, so the files are shuffled, and records in a buffer.
With a file for each photograph, names are shuffled instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers.loader import (
    AREAS,
    ASPECTS,
    MAX_TRIES,
    PIXEL_MEAN,
    PIXEL_SCALE,
    SIZE,
    decode,
    list_photographs,
)

# Files of TFRecords.
SHARDS = 10


class Epochs:
    """Epochs of a data set that repeats, from one iterator; from a new one after an epoch that was left early."""

    def __init__(self, dataset: Any, batches: int) -> None:
        self._dataset, self._batches = dataset, batches
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        iterator, self._iterator = self._iterator or self._dataset.as_numpy_iterator(), None
        yield from islice(iterator, self._batches)
        self._iterator = iterator


def _epochs(
    records: Any,
    count: int,
    finish: Any,
    batch_size: int,
    workers: int,
    autotune: bool,
    buffer_size: int,
    deterministic: bool,
) -> Epochs:
    """Return epochs of `count` records, which `finish` turns into images and labels, a batch at a time."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    options.threading.max_intra_op_parallelism = 1
    options.deterministic = deterministic
    options.autotune.enabled = autotune
    calls = tf.data.AUTOTUNE if autotune else workers
    dataset = (
        records.batch(batch_size)
        .repeat()
        .map(finish, num_parallel_calls=calls, deterministic=True)  # no batch leaves its epoch
        .prefetch(tf.data.AUTOTUNE if autotune else buffer_size)
        .with_options(options)
    )
    return Epochs(dataset, -(-count // batch_size))


def load_jpeg(
    path: str, batch_size: int, workers: int, autotune: bool = True, buffer_size: int = 3, deterministic: bool = False
) -> Any:
    return _load_photographs(path, batch_size, workers, autotune, buffer_size, deterministic, takes_crops=False)


def load_crops(
    path: str, batch_size: int, workers: int, autotune: bool = True, buffer_size: int = 3, deterministic: bool = False
) -> Any:
    return _load_photographs(path, batch_size, workers, autotune, buffer_size, deterministic, takes_crops=True)


def _load_photographs(
    path: str, batch_size: int, workers: int, autotune: bool, buffer_size: int, deterministic: bool, takes_crops: bool
) -> Any:
    # The accurate DCT, as libjpeg-turbo has it by default and all other loaders use it.
    accurate = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}

    def load(file: Any, label: Any) -> Any:
        encoded = tf.io.read_file(file)
        if not takes_crops:
            return tf.image.resize(tf.io.decode_jpeg(encoded, **accurate), (SIZE, SIZE)), label
        # As in the input pipeline of TensorFlow's own ResNet, github.com/tensorflow/models.
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            bounding_boxes=tf.zeros((1, 0, 4)),
            area_range=AREAS,
            aspect_ratio_range=ASPECTS,
            max_attempts=MAX_TRIES,
            use_image_if_no_bounding_boxes=True,
            min_object_covered=0.1,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        pixels = tf.image.resize(tf.image.decode_and_crop_jpeg(encoded, window, **accurate), (SIZE, SIZE))
        return tf.image.random_flip_left_right(pixels), label

    @tf.function(jit_compile=True)
    def normalise(pixels: Any, labels: Any) -> Any:
        return (tf.transpose(pixels, (0, 3, 1, 2)) - PIXEL_MEAN) * PIXEL_SCALE, labels

    files, labels = list_photographs(path)
    dataset = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], labels)).shuffle(len(files))
    records = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE if autotune else workers)
    return _epochs(records, len(files), normalise, batch_size, workers, autotune, buffer_size, deterministic)


@tf.function(jit_compile=True)
def normalise_kept(kept: Any) -> Any:
    """Return images, normalised, from rows of bytes that end with their pixels."""
    pixels = tf.reshape(kept[:, -SIZE * SIZE * 3 :], (-1, SIZE, SIZE, 3))
    return (tf.cast(tf.transpose(pixels, (0, 3, 1, 2)), tf.float32) - PIXEL_MEAN) * PIXEL_SCALE


def prepare_files(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    for number, file in enumerate(files):
        decode(file).tofile(f"{folder}/{number:06d}.pixels")
    np.save(f"{folder}/labels.npy", labels)


def load_files(
    folder: str, batch_size: int, workers: int, autotune: bool = True, buffer_size: int = 3, deterministic: bool = False
) -> Any:
    def read(file: Any, label: Any) -> Any:
        return tf.io.read_file(file), label

    def load(records: Any, labels: Any) -> Any:
        return normalise_kept(tf.io.decode_raw(records, tf.uint8)), labels

    files, labels = sorted(Path(folder).glob("*.pixels")), np.load(f"{folder}/labels.npy")
    dataset = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], labels)).shuffle(len(files))
    records = dataset.map(read, num_parallel_calls=tf.data.AUTOTUNE if autotune else workers)
    return _epochs(records, len(files), load, batch_size, workers, autotune, buffer_size, deterministic)


def prepare_records(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(f"{folder}/{shard:02d}.tfrecord") as writer:
            for file, label in zip(files[shard::SHARDS], labels[shard::SHARDS], strict=True):
                writer.write(label.tobytes() + decode(file).tobytes())
    np.save(f"{folder}/labels.npy", labels)


def load_records(
    folder: str, batch_size: int, workers: int, autotune: bool = True, buffer_size: int = 3, deterministic: bool = False
) -> Any:
    def load(records: Any) -> Any:
        labels = tf.io.decode_raw(tf.strings.substr(records, 0, 8), tf.int64)[:, 0]
        return normalise_kept(tf.io.decode_raw(records, tf.uint8)), labels

    shards, count = sorted(map(str, Path(folder).glob("*.tfrecord"))), len(np.load(f"{folder}/labels.npy"))
    calls = tf.data.AUTOTUNE if autotune else workers
    records = (
        tf.data.Dataset.from_tensor_slices(shards)
        .shuffle(len(shards))
        .interleave(tf.data.TFRecordDataset, cycle_length=len(shards), num_parallel_calls=calls)
        .shuffle(1000)
    )
    return _epochs(records, count, load, batch_size, workers, autotune, buffer_size, deterministic)


SETTINGS = {
    "workers": (1, 2, 3),
    "autotune": (True, False),
    "buffer_size": (1, 3, 6),
    "deterministic": (False, True),
}
load_files.prepare, load_records.prepare = prepare_files, prepare_records
load_jpeg.settings = load_crops.settings = load_files.settings = load_records.settings = SETTINGS
