"""WebDataset shards: images and labels in plain tar files."""

from __future__ import annotations

import glob
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from etl.sources.folder_walk import LeftOut, is_hidden
from etl.sources.identity import FileIdentity, relative_names
from etl.sources.image_folder import MAX_FILE_NBYTES
from etl.sources.labels import ClassNames, read_class_names
from etl.sources.positioned_file import PositionedFile
from etl.sources.record import Record, check_index
from etl.sources.tar_index import FURTHER_IMAGE, KEY_RULE, TarIndex, index_tar
from etl.sources.tar_labels import LabelMember

SUFFIX = ".tar"
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
CLASSES_FILE = "classes.txt"
NO_LABELS = "records have no labels: pass label='json:KEY', or the extension of the member with the label (--label)"
# Shards open at a time in each source. Opening one again takes a few microseconds, and the usual limit of 1,024 open
# files is for the whole program.
OPEN_SHARDS = 128


class Tar(FileIdentity):
    """The samples in WebDataset shards: one tar file, several, all `*.tar` in a folder, or all that match a pattern.

    Consecutive members with the same key (the path up to the first dot in the file name) are a sample, e.g. `0001.jpg`
    and `0001.cls`. A record has `features`, the bytes of the sample's image as read-only uint8 of shape `(bytes,)`,
    and `label`, an int, if there are labels. A member is an image if it has a suffix that `ImageFolder` takes, except
    that `0001.seg.png` does not count as an image beside `0001.jpg`. Names with dots of their own, such as `22.05.jpg`
    with `22.05.cls` or `photo.1.jpg` beside `photo.jpg`, are errors, since their dot ends the key.

    Parameters
    ----------
    path : str, Path, or several
        The shards. Shards found in a folder or by a pattern, in which `**` is any number of folders, are sorted by
        name; others keep the order given.
    label : str, optional
        The member with the label of a sample: an extension, such as "cls", whose text is a whole number; or "json:key",
        for a whole number or a class name in a JSON object. The key may lead into inner objects, as in
        "json:meta.class". By default the `.cls` members, if there are any.
    classes : sequence of str, optional
        Names of the classes, in the order of their numbers. By default the lines of `classes.txt` beside the first
        shard if there is one, otherwise the sorted names that are labels, or None if labels are numbers.

    Raises
    ------
    ValueError
        If a shard is compressed, damaged or cut off, has links, sparse files, or names that are absolute or have a part
        `..`; or if a sample does not have exactly one image, or its label is missing, invalid or not among `classes`.
        The error names shard, member and key.

    Warns
    -----
    UserWarning
        If members are neither image nor label, or further images of a sample. It counts them by suffix, but not hidden
        members, and adds if there are no labels.

    Notes
    -----
    Nothing is unpacked. Opening reads the headers of all members once; the index of a shard with many members is kept
    in the user's cache folder. A source may be forked and used by several threads. It may be pickled, with its index of
    about 40 bytes for each record.
    """

    thread_safe = True

    ragged = ("features",)

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        label: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.name = str(path) if isinstance(path, (str, Path)) else ", ".join(map(str, path))
        wanted = None
        if label is not None:
            wanted = LabelMember.parse(label)
            self.options = {"label": label}
        left_out = LeftOut()
        self.shards = _find_shards(path, left_out)
        self._indices = [index_tar(shard, wanted) for shard in self.shards]
        self._ends = list(accumulate(len(index.offsets) for index in self._indices))
        if not len(self):
            raise ValueError(f"{self.name} holds no samples")
        _check_labels_alike(self.shards, self._indices)
        self.classes = _read_classes(self.shards[0].parent / CLASSES_FILE) if classes is None else list(classes)
        if any(index.label_names is not None for index in self._indices):
            self._number_names()
        elif self.classes is not None:
            self._check_labels_below(len(self.classes))
        # Before records are read, the working folder may change.
        self.shards = [each.absolute() for each in self.shards]
        self._open = lru_cache(OPEN_SHARDS)(PositionedFile)
        for index in self._indices:
            left_out.update(_counts(index.left_out, ""), "members that are neither image nor label")
            left_out.update(_counts(index.left_out, FURTHER_IMAGE), f"further images of a sample: {KEY_RULE}")
        has_labels = any(index.labels is not None and len(index.labels) for index in self._indices)
        left_out.warn(self.name, "" if has_labels else NO_LABELS)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        shard, sample = self._locate(index)
        found = self._indices[shard]
        nbytes = int(found.sizes[sample])
        if nbytes > MAX_FILE_NBYTES:
            raise ValueError(f"it has {nbytes:,} bytes, and no image has more than {MAX_FILE_NBYTES:,}")
        # A file that the cache evicts is closed once the last thread has read from it.
        encoded = self._open(self.shards[shard]).read(int(found.offsets[sample]), nbytes)
        if not encoded:
            raise ValueError("the file is empty")
        record: Record = {"features": np.frombuffer(encoded, np.uint8)}
        return record if found.labels is None else {**record, "label": int(found.labels[sample])}

    def describe(self, index: int) -> str:
        """Return the shard and the image's name of record `index`, for messages."""
        shard, sample = self._locate(index)
        return f"{self.shards[shard].name}: {self._indices[shard].name(sample)}"

    def close(self) -> None:
        """Close the shards; the next read opens them again."""
        self._open.cache_clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=lru_cache(OPEN_SHARDS)(PositionedFile))

    def _identified(self) -> tuple[list[str], list[Path], np.ndarray | None]:
        labels = [index.labels for index in self._indices if index.labels is not None]
        return relative_names(self.shards), self.shards, np.concatenate(labels) if labels else None

    def __repr__(self) -> str:
        return f"Tar({self.name!r}, {len(self):,} samples in {len(self.shards)} shards)"

    def _locate(self, index: int) -> tuple[int, int]:
        check_index(self, index)
        shard = bisect_right(self._ends, index)
        return shard, int(index) - (self._ends[shard - 1] if shard else 0)

    def _number_names(self) -> None:
        """Replace each shard's indices into its own names by class numbers."""
        if self.classes is None:
            self.classes = sorted({name.strip() for index in self._indices for name in index.label_names or ()})
        known = ClassNames(self.classes)
        for shard, index in enumerate(self._indices):
            numbers = []
            for name_index, name in enumerate(index.label_names or ()):
                try:
                    numbers.append(known.value(name.encode()))
                except ValueError as error:
                    image = index.name(int(np.flatnonzero(index.labels == name_index)[0]))
                    raise ValueError(f"{self.shards[shard]}: {image}: {error}") from None
            if index.labels is not None and numbers:
                labels = np.array(numbers, np.int64)[index.labels]
                self._indices[shard] = replace(index, labels=labels, label_names=None)

    def _check_labels_below(self, classes: int) -> None:
        for shard, index in enumerate(self._indices):
            if index.labels is None:
                continue
            wrong = np.flatnonzero((index.labels < 0) | (index.labels >= classes))
            if len(wrong):
                name, label = index.name(int(wrong[0])), index.labels[wrong[0]]
                raise ValueError(f"{self.shards[shard]}: {name} has label {label}, and there are {classes} classes")


def _counts(left_out: Mapping[str, int], mark: str) -> dict[str, int]:
    """Return the counts of `left_out` whose suffix follows `mark`, without it."""
    return {name.removeprefix(mark): n for name, n in left_out.items() if name.startswith(FURTHER_IMAGE) == bool(mark)}


def _find_shards(path: str | Path | Sequence[str | Path], left_out: LeftOut) -> list[Path]:
    if not isinstance(path, (str, Path)):
        shards = [Path(shard) for shard in path]
        if not shards:
            raise ValueError("no shards were given")
        return shards
    if Path(path).is_dir():
        shards = _shards_in(Path(path))
        if not shards:
            raise ValueError(f"{path} holds no *{SUFFIX} files")
        for entry in Path(path).iterdir():
            if entry.name.lower().endswith(COMPRESSED_TARS):
                left_out.add(entry.name, "compressed shards, which can be read once they are unpacked")
            elif entry.is_dir():
                for shard in _shards_in(entry):
                    left_out.add(shard.name, "shards in sub-folders")
        return shards
    if not Path(path).exists() and glob.has_magic(str(path)):
        shards = matching_files(path)
        if not shards:
            raise ValueError(f"no file matches {path}")
        return shards
    return [Path(path)]


def matching_files(pattern: str | Path) -> list[Path]:
    """Return what matches `pattern`, in which `**` is any number of folders, sorted and each once."""
    # Two `**` find a file in several ways, and so several times.
    return sorted(set(map(Path, glob.glob(str(pattern), recursive=True))))  # noqa: PTH207 - it may be absolute


def _shards_in(folder: Path) -> list[Path]:
    names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is needed
    return [folder / name for name in names if name.lower().endswith(SUFFIX) and not is_hidden(name)]


def _check_labels_alike(shards: Sequence[Path], indices: Sequence[TarIndex]) -> None:
    filled = [(shard, index) for shard, index in zip(shards, indices, strict=True) if len(index.offsets)]
    for shard, index in filled:
        if (index.labels is None) != (filled[0][1].labels is None):
            with_labels, without = (filled[0][0], shard) if index.labels is None else (shard, filled[0][0])
            raise ValueError(f"samples of {with_labels} have labels, those of {without} none; give them to all or none")
        if (index.label_names is None) != (filled[0][1].label_names is None):
            raise ValueError(
                f"labels of {filled[0][0]} and of {shard} are whole numbers in one, and names of classes in the other"
            )


def _read_classes(path: Path) -> list[str] | None:
    return read_class_names(path).rstrip().splitlines() if path.is_file() else None
