"""Demonstration photographs: crops of the photographs that scikit-image and scikit-learn ship."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
from PIL import Image

from etl.arguments import whole_number
from etl.demonstration.directory import make_once

# The file of each class, in the data folder of scikit-image or, for the last two, of scikit-learn.
PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
    "flower": "flower.jpg",
    "temple": "china.jpg",
}
FROM_SKLEARN = ("flower.jpg", "china.jpg")
VERSION = 1
WIDTH, HEIGHT, JITTER = 500, 375, 0.1
QUALITY = 90


def photographs(
    directory: str | Path, samples: int = 2000, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> bool:
    """Write JPEG photographs of 10 classes to `directory`, one folder for each class.

    Each is a random crop (half to all of the height or width) of a real photograph, resized to about 500x375 pixels
    (each side within 10%), quality 90.

    Parameters
    ----------
    directory : path
        Where to write. Existing data that was made with the same arguments is kept.
    samples : int
        How many photographs to write, at least 10.
    seed : int
        Equal seeds give equal bytes with the same version of Pillow.
    progress : callable, optional
        Called with the number of photographs made so far, and their total.

    Returns
    -------
    True if the data was made, False if it existed.

    Raises
    ------
    ValueError
        If `samples` or `seed` is out of range, or the directory holds something else.
    RuntimeError
        If scikit-image or scikit-learn is not installed.
    OSError
        If the disk is full or fails.
    """
    if samples < len(PHOTOGRAPHS):
        raise ValueError(f"samples must be at least {len(PHOTOGRAPHS)}, one for each class, not {samples}")
    samples = whole_number("samples", samples, least=len(PHOTOGRAPHS))
    seed = whole_number("seed", seed, least=0)
    description = {"kind": "photographs", "version": VERSION, "samples": samples, "seed": seed}

    def fill(folder: Path) -> None:
        pictures = _load_pictures()
        for name in PHOTOGRAPHS:
            (folder / name).mkdir()
        names = list(PHOTOGRAPHS)

        def make(number: int) -> None:
            name = names[number % len(names)]
            _crop(pictures[name], folder / name, number, seed)

        pool = ThreadPoolExecutor(joblib.cpu_count())
        try:
            for made, _ in enumerate(pool.map(make, range(samples)), 1):
                if progress is not None:
                    progress(made, samples)
        finally:  # after an error the folder is removed, and no thread may write to it any more
            pool.shutdown(cancel_futures=True)

    return make_once(directory, description, fill)


def _crop(picture: Image.Image, folder: Path, number: int, seed: int) -> None:
    random = np.random.default_rng([seed, number])
    width, height = (round(side * random.uniform(1 - JITTER, 1 + JITTER)) for side in (WIDTH, HEIGHT))
    scale = random.uniform(0.5, 1.0) * min(picture.width / width, picture.height / height)
    across, down = width * scale, height * scale
    left, top = random.uniform(0, picture.width - across), random.uniform(0, picture.height - down)
    crop = picture.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, left + across, top + down))
    crop.save(folder / f"{number:06d}.jpg", quality=QUALITY)


def _load_pictures() -> dict[str, Image.Image]:
    try:
        import skimage
        import sklearn
    except ImportError as error:
        raise RuntimeError(f"the demonstration data needs {error.name}: pip install 'fair-etl[demo]'") from error
    folders = {
        True: Path(sklearn.__file__).parent / "datasets" / "images",
        False: Path(skimage.__file__).parent / "data",
    }
    pictures = {}
    for name, file in PHOTOGRAPHS.items():
        with Image.open(folders[file in FROM_SKLEARN] / file) as picture:
            pictures[name] = picture.convert("RGB")
    return pictures
