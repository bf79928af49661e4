"""Detection of the source at a path, or by name."""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etl.images.pillow import suffixes
from etl.sources.cifar10 import SPLIT_FILES, Cifar10
from etl.sources.csv import Csv
from etl.sources.folder_walk import is_hidden
from etl.sources.idx import SPLIT_PREFIXES, Idx
from etl.sources.image_folder import ImageFolder
from etl.sources.named import is_source_name, open_named
from etl.sources.sequence_files import SUFFIX as CSV_SUFFIX
from etl.sources.sequences import Sequences
from etl.sources.tar import COMPRESSED_TARS, Tar
from etl.sources.tar import SUFFIX as SHARD_SUFFIX


def open_source(path: str | Path, split: str | None = None, **options: Any) -> Any:
    """Open the source at `path`, by this table.

    ==================================================== =============
    path                                                 source
    ==================================================== =============
    a file `.csv` or `.tsv`                              `Csv`
    a file `.tar`, or a pattern of such files            `Tar`
    a file `.bin`                                        `Cifar10`
    a folder with the file names of MNIST                `Idx`
    a folder with the file names of CIFAR-10             `Cifar10`
    a folder with two or more sub-folders of images      `ImageFolder`
    a folder with `.tar` files                           `Tar`
    a folder with CSV files, in it or in its sub-folders `Sequences`
    any other folder                                     `ImageFolder`
    ==================================================== =============

    Hidden files, such as `._a.csv`, do not count. Tables and tar files beside two or more sub-folders of images are
    left alone. So are one table beside tar files, and CSV files in some sub-folders if these and others hold images, or
    the reverse. Any other folder that holds two kinds is an error that names both.

    If nothing is at `path`, it may be a name instead:

    - "package.module:function": what the function returns, which is a source, or a map-style data set of torch (any
      object with `len` and `[i]`), which is put into a `MapDataset`. The function is called without arguments, or with
      those of `split` and `options` that were given and that it has. Modules are found on the path and in the working
      folder.
    - "NAME://PATH": the source that another package registers as NAME, as an entry point of the group `etl.sources`.
      The entry point is a function or class, which is called with PATH, or without it for "NAME://", and may return
      whatever a function may.
    - What `etl.functions.pickle_function` returned.

    Parameters
    ----------
    path : str or Path
        A file, a folder, a pattern such as `train-*.tar`, or a name.
    split : str, optional
        "train" (the default) or "test", for sources that have both.
    **options
        Further arguments of the source's class or function.

    Raises
    ------
    ValueError
        If there is no source at `path` or two kinds of them, it does not have one of the options, or its function
        raises an error or returns something else.

    Examples
    --------
    >>> etl.open_source("photos/")
    ImageFolder('photos/', 40 images of 10 classes)
    >>> etl.open_source("my_project.data:dataset", split="test")  # doctest: +SKIP
    >>> etl.open_source("lmdb://photos.lmdb")  # doctest: +SKIP
    """
    if not str(path):
        raise ValueError("the source has an empty name: give a folder, a file or package.module:function")
    if isinstance(path, str) and is_source_name(path):
        return open_named(path, options if split is None else {**options, "split": split})
    make, defaults = _choose(path)
    if split is not None:
        options["split"] = split
    unknown = sorted(options.keys() - inspect.signature(make).parameters.keys())
    if unknown:
        kind = getattr(make, "__self__", make).__name__
        raise ValueError(f"{path} is read as {kind}, which has no option {', '.join(unknown)}")
    return make(path, **{**defaults, **options})


def _choose(path: str | Path) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the constructor of the source at `path`, and its default arguments."""
    name = Path(path).name.lower()
    if Path(path).is_dir():
        return _choose_for_folder(Path(path)), {}
    if name.endswith((".csv", ".csv.gz")):
        return Csv, {}
    if name.endswith((".tsv", ".tsv.gz")):
        return Csv, {"delimiter": "\t"}
    if name.endswith((".tar", *COMPRESSED_TARS)) or (glob.has_magic(str(path)) and not Path(path).exists()):
        return Tar, {}
    if name.endswith(".bin"):
        return Cifar10, {}
    if Path(path).exists():
        raise ValueError(
            f"{path} is a file; a source is a folder of images, of sequences, of tar files or with the files of MNIST "
            "or CIFAR-10, or a .csv, .tsv, .tar or .bin file"
        )
    return ImageFolder, {}


def _choose_for_folder(folder: Path) -> Callable[..., Any]:
    """Return the constructor of the source in `folder`; raise `ValueError` that names all kinds if there are several.

    Hidden files do not count, and neither does the order of directory entries.
    """
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not is_hidden(entry.name)]
    files = sorted(entry.name for entry in visible if entry.is_file())
    shards, tables, pictures = (_ending(files, each) for each in ((SHARD_SUFFIX,), (CSV_SUFFIX,), suffixes()))
    with_images, with_tables = _find_class_folders(sorted(entry.path for entry in visible if entry.is_dir()))
    by_name = _choose_by_name(set(files))
    if by_name is not None:
        kinds = {by_name: f"the files of {'MNIST' if by_name == Idx.from_folder else 'CIFAR-10'}"}
        if with_images:
            kinds[ImageFolder] = f"images in the sub-folder {with_images[0]!r}"
        return _only(folder, kinds)
    kinds = {}
    if len(with_images) > 1:  # class folders: what lies beside them is not a data set of its own
        shards, tables = [], []
    elif shards and len(tables) == 1:  # it describes them
        tables = []
    if with_images or (pictures and len(pictures) >= len(shards) + len(tables)):
        kinds[ImageFolder] = "images " + (
            f"in {with_images[0]!r}" if with_images else f"in no sub-folder ({pictures[0]!r})"
        )
    if shards:
        kinds[Tar] = f"tar files ({shards[0]!r})"
    if tables or with_tables:
        kinds[Sequences] = f"CSV files ({tables[0]!r})" if tables else f"CSV files in {with_tables[0]!r}"
    return _only(folder, kinds)


def _choose_by_name(names: set[str]) -> Callable[..., Any] | None:
    """Return the constructor for a folder with these files, if their names are those of MNIST or CIFAR-10."""
    if any(f"{prefix}-images-idx3-ubyte{end}" in names for prefix in SPLIT_PREFIXES.values() for end in ("", ".gz")):
        return Idx.from_folder
    cifar10 = {name for files in SPLIT_FILES.values() for name in files}
    return Cifar10 if names & (cifar10 | {name.removesuffix(".bin") for name in cifar10}) else None


def _find_class_folders(folders: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of the folders that hold images, and of those that hold CSV files, at any depth.

    If every folder that holds either has one kind, the other one is only beside it.
    """
    found: dict[tuple[str, ...], list[str]] = {suffixes(): [], (CSV_SUFFIX,): []}
    for folder in folders:
        wanted = list(found)
        for _, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if not is_hidden(name)]
            names = [name.lower() for name in names if not is_hidden(name)]
            for each in [each for each in wanted if any(name.endswith(each) for name in names)]:
                found[each].append(Path(folder).name)
                wanted.remove(each)
            if not wanted:
                break
    images, tables = found.values()
    if set(images) > set(tables):
        tables = []
    elif set(tables) > set(images):
        images = []
    return images, tables


def _ending(names: list[str], ends: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.lower().endswith(ends)]


def _only(folder: Path, kinds: dict[Callable[..., Any], str]) -> Callable[..., Any]:
    if len(kinds) > 1:
        classes = [getattr(kind, "__qualname__", "") for kind in kinds]
        raise ValueError(
            f"{folder} holds {' and '.join(kinds.values())}, and only one kind can be the source: move the other one "
            f"elsewhere, give the path of the file to read, or choose etl.{' or etl.'.join(classes)} in Python"
        )
    return next(iter(kinds), ImageFolder)
