"""Detection of the source at a path, or by name."""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etl.sources.cifar10 import SPLIT_FILES, Cifar10
from etl.sources.csv import Csv
from etl.sources.idx import SPLIT_PREFIXES, Idx
from etl.sources.image_folder import ImageFolder
from etl.sources.named import is_source_name, open_named
from etl.sources.sequence_files import LABELS_FILE
from etl.sources.sequences import Sequences
from etl.sources.tar import COMPRESSED_TARS, Tar


def open_source(path: str | Path, split: str | None = None, **options: Any) -> Any:
    """Open the source at `path`: the first row of this table that fits.

    ==================================================== =============
    path                                                 source
    ==================================================== =============
    a file `.csv` or `.tsv`                              `Csv`
    a file `.tar`, or a pattern of such files            `Tar`
    a file `.bin`                                        `Cifar10`
    a folder with the file names of MNIST                `Idx`
    a folder with the file names of CIFAR-10             `Cifar10`
    a folder with `.tar` files                           `Tar`
    a folder with CSV files, in it or in its sub-folders `Sequences`
    any other folder                                     `ImageFolder`
    ==================================================== =============

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
        A file, a folder, a pattern such as "train-*.tar", or a name.
    split : str, optional
        "train" (the default) or "test", for sources that have both.
    **options
        Further arguments of the source's class or function.

    Raises
    ------
    ValueError
        If there is no source at `path`, it does not have one of the options, or its function raises an error or returns
        something else.

    Examples
    --------
    >>> etl.open_source("photos/")
    >>> etl.open_source("my_project.data:dataset", split="test")
    >>> etl.open_source("lmdb://photos.lmdb")
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
    names = {entry.name for entry in os.scandir(folder) if entry.is_file()}
    if any(f"{prefix}-images-idx3-ubyte{end}" in names for prefix in SPLIT_PREFIXES.values() for end in ("", ".gz")):
        return Idx.from_folder
    cifar10 = {name for files in SPLIT_FILES.values() for name in files}
    if names & (cifar10 | {name.removesuffix(".bin") for name in cifar10}):
        return Cifar10
    suffixes = {Path(name).suffix.lower() for name in names - {LABELS_FILE}}
    if ".tar" in suffixes:
        return Tar
    if ".csv" in suffixes or LABELS_FILE in names or _has_sequences_below(folder):
        return Sequences
    return ImageFolder


def _has_sequences_below(folder: Path) -> bool:
    """Return True if a sub-folder has CSV files, judged by the first file found: there may be very many images."""
    sub_folders = [entry for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    for sub_folder in sorted(sub_folders, key=lambda entry: entry.name):
        with os.scandir(sub_folder) as entries:
            for entry in entries:
                if entry.is_file() and not entry.name.startswith("."):
                    return entry.name.lower().endswith(".csv")
    return False
