"""Where the samples of a WebDataset shard lie in its tar file, found in one pass over its headers."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import numpy as np
from platformdirs import user_cache_path

from etl.images.pillow import suffixes
from etl.sources.left_out import suffix_of
from etl.sources.tar_labels import LabelMember

# Read if it is there, unless another is named.
USUAL_LABEL = LabelMember("cls")
BLOCK_NBYTES = tarfile.BLOCKSIZE
# A scan takes about 35 microseconds a member, so that shards of ImageNet's size together take a minute and a half.
CACHED_FROM_MEMBERS = 2_000
# In the name of a cached index: whoever changes what is in one must change this.
CACHE_VERSION = 3
# What tarfile reads at once, beside blocks of 512 bytes, are long names and pax headers.
LARGEST_READ_NBYTES = 1 << 20
# What tarfile's parsers raise for headers that nobody has written so.
MALFORMED = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError)
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


@dataclass(frozen=True)
class TarIndex:
    """For each sample of a shard, in the order of the file: `offsets` and `sizes` of its image in bytes, and `labels`.

    All are int64 of shape `(samples,)`; `labels` are None where no sample has one. If they are names of classes,
    `label_names` are these, and `labels` places among them. `names` are the images' names, one after another, each up
    to its place in `name_ends`. `left_out` counts the members that are neither image nor label, by suffix.
    """

    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray | None
    names: bytes
    name_ends: np.ndarray
    label_names: tuple[str, ...] | None
    left_out: Mapping[str, int]

    def name(self, sample: int) -> str:
        """The name of a sample's image in the tar file."""
        start = int(self.name_ends[sample - 1]) if sample else 0
        return self.names[start : int(self.name_ends[sample])].decode("utf-8", "surrogateescape")


def index_tar(path: Path, label: LabelMember | None = None) -> TarIndex:
    """The index of the shard at `path`: kept from an earlier time in the user's cache if the file's size and time of
    change are the same, otherwise read from its headers, and kept where that takes long.

    Labels are read from `label`, or from members `.cls` if that is None and there are any. Raises `ValueError` that
    names file and member where it is no whole tar file or not made of samples.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    status = path.stat()
    key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {CACHE_VERSION} {suffixes()} {label}"
    kept = user_cache_path("fair-etl") / "tar-index" / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.npz"
    index = _load(kept)
    if index is None:
        with path.open("rb") as file:
            index, members = _scan(path, file, status.st_size, label)
        if members >= CACHED_FROM_MEMBERS:
            _save(index, kept)
    return index


def _scan(path: Path, file: BinaryIO, nbytes: int, wanted: LabelMember | None) -> tuple[TarIndex, int]:
    """The index, and the number of members."""
    offsets: list[int] = []
    sizes: list[int] = []
    labels: list[int | str] = []
    names: list[bytes] = []
    left_out: Counter[str] = Counter()
    members = 0
    source = wanted or USUAL_LABEL
    for key, sample in _samples(path, _members(path, file, nbytes), left_out):
        members += len(sample)
        images = {name: each for name, each in sample.items() if f".{name.rpartition('.')[2]}" in suffixes()}
        if len(images) > 1:  # beside jpg, seg.png is something else
            images = {name: each for name, each in images.items() if "." not in name} or images
        if len(images) != 1:
            found = "more than one image" if images else f"no image ({', '.join(suffixes())})"
            raise ValueError(
                f"{path}: sample {key} has {found} among its members {', '.join(sample)}; the members of a sample "
                "stand one after another"
            )
        member = sample.get(source.extension)
        if wanted is not None and member is None:
            raise ValueError(
                f"{path}: sample {key} has no member .{source.extension} for its label; it has {', '.join(sample)}"
            )
        if offsets and (member is None) == bool(labels):
            has = "no" if member is None else "a"
            raise ValueError(f"{path}: sample {key} has {has} member .{source.extension}, unlike those before it")
        if member is not None:
            label = source.read(path, file, member)
            if labels and type(label) is not type(labels[0]):
                raise ValueError(
                    f"{path}: {member.name} has label {label!r}, and the first label is {labels[0]!r}; they are either "
                    "all whole numbers or all names of classes"
                )
            labels.append(label)
        (image,) = images.values()
        left_out.update(suffix_of(each.name) for each in sample.values() if each is not image and each is not member)
        offsets.append(image.offset_data)
        sizes.append(image.size)
        names.append(image.name.encode("utf-8", "surrogateescape"))
    label_names = None
    if labels and isinstance(labels[0], str):
        label_names = tuple(sorted({*map(str, labels)}))
        places = {name: place for place, name in enumerate(label_names)}
        labels = [places[str(name)] for name in labels]
    index = TarIndex(
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array(labels, np.int64) if labels or not offsets else None,
        b"".join(names),
        np.cumsum([len(name) for name in names], dtype=np.int64),
        label_names,
        dict(left_out),
    )
    return index, members


def _samples(
    path: Path, members: Iterator[tarfile.TarInfo], left_out: Counter[str]
) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Members with one key that stand one after another, by their extensions.

    As WebDataset has it: the key is the path up to the first dot in the file's name, the extension what follows.
    Files without extension belong to no sample and are counted in `left_out`, hidden ones, as those of macOS, are not.
    """
    key = ""
    sample: dict[str, tarfile.TarInfo] = {}
    for member in members:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not stem or not dot:
            if stem:
                left_out[suffix_of(name)] += 1
            continue
        if sample and key != f"{folder}{slash}{stem}":
            yield key, sample
            sample = {}
        key = f"{folder}{slash}{stem}"
        if extension.lower() in sample:
            raise ValueError(f"{path}: sample {key} has two members .{extension.lower()}")
        sample[extension.lower()] = member
    if sample:
        yield key, sample


def _members(path: Path, file: BinaryIO, nbytes: int) -> Iterator[tarfile.TarInfo]:
    """The plain files in a tar file; raises `ValueError` where it is none, or does not end as it should."""
    start = file.read(2)
    if start in COMPRESSED:
        raise ValueError(
            f"{path} is compressed with {COMPRESSED[start]}, and cannot be read at random; unpack it to a plain .tar "
            "(images are compressed already)"
        )
    file.seek(0)
    last, end = "its beginning", 0
    for member in _headers(path, file):
        name = member.name
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{path}: member {name} leads out of the folder it is unpacked to; rename it")
        if not (member.isreg() or member.isdir()) or member.issparse():
            kind = "sparse" if member.issparse() else "a link" if member.islnk() or member.issym() else "special"
            raise ValueError(f"{path}: member {name} is {kind}; only plain files can be read where they lie")
        size = member.size if member.isreg() else 0
        end = member.offset_data + -(-size // BLOCK_NBYTES) * BLOCK_NBYTES
        if member.offset_data + size > nbytes:
            raise ValueError(f"{path} was cut off within {name}: it has {nbytes:,} bytes, and needs {end:,} for it")
        last = name
        if member.isreg():
            yield member
    # tarfile takes a damaged header and the end of the file for the end of the archive.
    file.seek(end)
    block = file.read(BLOCK_NBYTES)
    if len(block) < BLOCK_NBYTES or any(block):
        cause = "has no end mark" if not block else "is damaged or was cut off"
        raise ValueError(f"{path} {cause} after {last}; make it again")
    while rest := file.read(1 << 20):
        if any(rest):
            raise ValueError(f"{path} goes on after its end mark; tar files joined into one cannot be read, split them")


def _headers(path: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """What tarfile makes of the headers; raises `ValueError` where that is nothing."""
    last = "its beginning"
    try:
        with tarfile.open(fileobj=cast("BinaryIO", _BoundedFile(file)), mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                if member.size < 0:
                    raise tarfile.TarError(f"{member.name} has {member.size} bytes")
                last = member.name
                yield member
    except (tarfile.TarError, _HeaderError, *MALFORMED) as error:
        raise ValueError(f"{path} is no tar file, or damaged after {last}: {error}") from None


class _HeaderError(Exception):
    """A header that no tar file has."""


class _BoundedFile:
    """`file` for tarfile, which takes memory for as many bytes as a header says that it has."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tell = file.tell
        self.seek = file.seek

    def read(self, nbytes: int) -> bytes:
        if not 0 <= nbytes <= LARGEST_READ_NBYTES:
            raise _HeaderError(f"a header of {nbytes:,} bytes")
        return self._file.read(nbytes)


def _load(kept: Path) -> TarIndex | None:
    """The index in the file at `kept`; None where there is none that can be read."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            more = json.loads(arrays["more"].tobytes())
            return TarIndex(
                arrays["offsets"],
                arrays["sizes"],
                arrays.get("labels"),
                arrays["names"].tobytes(),
                arrays["name_ends"],
                None if more["label_names"] is None else tuple(more["label_names"]),
                more["left_out"],
            )
    except Exception:  # noqa: BLE001 - whatever a damaged file makes of it, the headers say the same
        return None


def _save(index: TarIndex, kept: Path) -> None:
    arrays: dict[str, Any] = {"offsets": index.offsets, "sizes": index.sizes, "name_ends": index.name_ends}
    arrays["names"] = np.frombuffer(index.names, np.uint8)
    more = json.dumps({"label_names": index.label_names, "left_out": index.left_out})
    arrays["more"] = np.frombuffer(more.encode(), np.uint8)
    if index.labels is not None:
        arrays["labels"] = index.labels
    # It only saves time, so that a cache that cannot be written to is nobody's mistake.
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".npz", delete=False) as file:
            try:
                np.savez(file, **arrays)
                file.flush()
                Path(file.name).replace(kept)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
