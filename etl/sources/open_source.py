"""Finding out what a path holds."""

from __future__ import annotations

from pathlib import Path

from etl.pipeline import Pipeline, digits_pipeline, image_pipeline
from etl.sources.idx import SPLIT_PREFIXES, Idx
from etl.sources.image_folder import ImageFolder


def open_source(path: str | Path, split: str = "train") -> ImageFolder | Idx:
    """The source at `path`: `Idx` for a folder with MNIST's file names, otherwise `ImageFolder`.

    Raises `ValueError` that says what was looked for.
    """
    folder = Path(path)
    if folder.is_file():
        raise ValueError(f"{path} is a file; a source is a folder of images, or one with MNIST's IDX files")
    if any(
        (folder / f"{prefix}-images-idx3-ubyte{end}").is_file()
        for prefix in SPLIT_PREFIXES.values()
        for end in ("", ".gz")
    ):
        return Idx.from_folder(folder, split)
    return ImageFolder(path)


def usual_pipeline(source: ImageFolder | Idx, size: int, decoder: str) -> Pipeline:
    """The pipeline that turns records of `source` into training arrays."""
    return digits_pipeline() if isinstance(source, Idx) else image_pipeline(size, decoder)
