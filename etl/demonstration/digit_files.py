"""Demonstration digits: scikit-learn's digits, handwritten by 43 people, as files in MNIST's IDX format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from etl.arguments import whole_number
from etl.demonstration.directory import make_once
from etl.sources.idx import SPLIT_PREFIXES, write_idx

VERSION = 1
TRAIN_SHARE = 0.8
# MNIST's own layout: 20x20 pixels of digit in the middle of 28x28 (LeCun et al., http://yann.lecun.com/exdb/mnist/).
DIGIT_SIZE, IMAGE_SIZE = 20, 28


def digits(directory: str | Path, samples: int | None = None, seed: int = 0, compress: bool = True) -> bool:
    """Write the 1,797 handwritten digits of scikit-learn to `directory` as MNIST files.

    The 8x8 images (UCI ML repository, "Optical Recognition of Handwritten Digits") are enlarged bilinearly to MNIST's
    layout of 28x28, uint8. Four fifths are written as `train-...`, the rest as `t10k-...`.

    Parameters
    ----------
    directory : path
        Where to write. Existing data that was made with the same arguments is kept.
    samples : int, optional
        How many digits to write, at least 10; by default all.
    seed : int
        Decides the order.
    compress : bool
        Compress the files with gzip.

    Returns
    -------
    True if the data was made, False if it existed.

    Raises
    ------
    ValueError
        If `samples` or `seed` is out of range, or the directory holds something else.
    RuntimeError
        If scikit-learn is not installed.
    OSError
        If the disk is full or fails.
    """
    seed = whole_number("seed", seed, least=0)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RuntimeError(f"the demonstration data needs {error.name}: pip install 'fair-etl[demo]'") from error
    data = load_digits()
    count = len(data.images) if samples is None else samples
    if not 10 <= count <= len(data.images):
        raise ValueError(f"samples must be from 10 to {len(data.images)}, not {samples}")
    count = whole_number("samples", count, least=10)
    description = {"kind": "digits", "version": VERSION, "samples": count, "seed": seed, "compress": compress}

    def fill(folder: Path) -> None:
        order = np.random.default_rng(seed).permutation(len(data.images))[:count]
        images = np.stack([_enlarge(image) for image in data.images[order]])
        labels = data.target[order]
        train_count = round(count * TRAIN_SHARE)
        suffix = ".gz" if compress else ""
        for prefix, part in zip(
            SPLIT_PREFIXES.values(), (slice(0, train_count), slice(train_count, None)), strict=True
        ):
            write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images[part])
            write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", labels[part])

    return make_once(directory, description, fill)


def _enlarge(image: np.ndarray) -> np.ndarray:
    pixels = np.round(image * (255 / 16)).astype(np.uint8)  # scikit-learn's pixels are from 0 to 16
    digit = Image.fromarray(pixels).resize((DIGIT_SIZE, DIGIT_SIZE), Image.Resampling.BILINEAR)
    return np.pad(np.asarray(digit), (IMAGE_SIZE - DIGIT_SIZE) // 2)
