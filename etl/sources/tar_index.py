"""The offsets of the samples in a WebDataset shard, found in one pass over the headers of the tar file."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from etl.images.pillow import suffixes
from etl.sources.folder_walk import is_hidden, suffix_of
from etl.sources.identity import settle, stamp
from etl.sources.record import check_file
from etl.sources.tar_labels import LabelMember
from presave.files import replacing

# Read if there is one, unless the user names another.
DEFAULT_LABEL = LabelMember("cls")
BLOCK_NBYTES = tarfile.BLOCKSIZE
# Indices of shards with fewer members are not cached. A scan takes about 35 microseconds a member, and a minute and a
# half for shards of ImageNet's size.
MIN_CACHED_MEMBERS = 2_000
# Part of the name of a cached index. Change it with the content of an index.
CACHE_VERSION = 4
KEY_RULE = "a sample's key ends at the first dot of a file name"
# Marks, in `TarIndex.left_out`, images that another one of their sample was preferred to.
FURTHER_IMAGE = "*"
# Apart from blocks of 512 bytes, tarfile reads only long names and pax headers at once.
MAX_READ_NBYTES = 1 << 20
# Errors that tarfile's parsers raise for malformed headers.
MALFORMED = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError)
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


@dataclass(frozen=True)
class TarIndex:
    """The samples of a shard, in the order of the file.

    Attributes
    ----------
    offsets : int64 array of shape (samples,)
        Byte of the tar file at which each image begins.
    sizes : int64 array of shape (samples,)
        Size of each image in bytes.
    labels : int64 array of shape (samples,), or None
        Labels, if samples have them; indices into `label_names` if that is not None.
    names : bytes
        Names of the images, concatenated.
    name_ends : int64 array of shape (samples,)
        End of each name in `names`.
    label_names : tuple of str or None
        Class names, if labels are names.
    left_out : mapping of str to int
        Number of members that are neither image nor label, by suffix. The suffix of an image with the suffix of the
        chosen one follows `FURTHER_IMAGE`.
    """

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    labels: np.ndarray | None
    names: bytes
    name_ends: NDArray[np.int64]
    label_names: tuple[str, ...] | None
    left_out: Mapping[str, int]

    def name(self, sample: int) -> str:
        """Return the name of a sample's image in the tar file."""
        start = int(self.name_ends[sample - 1]) if sample else 0
        return self.names[start : int(self.name_ends[sample])].decode("utf-8", "surrogateescape")


def index_tar(path: Path, label: LabelMember | None = None) -> TarIndex:
    """Return the index of the shard at `path`.

    It is loaded from the user's cache if the file's size and times are those of the cached index. Otherwise it is read
    from the headers, and cached if the shard has many members.

    Labels are read from `label`; if that is None, from the `.cls` members, if there are any. Raises `ValueError` that
    names file and member if the file is not a whole tar file or does not consist of samples.
    """
    check_file(path)
    status = path.stat()
    key = f"{path.resolve()} {stamp(status)} {CACHE_VERSION} {suffixes()} {label}"
    cached = user_cache_path("fair-etl") / "tar-index" / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.npz"
    index = _load(cached)
    if index is None:
        settle(status)
        with path.open("rb") as file:
            index, members = _scan(path, file, status.st_size, label)
        if stamp(path.stat()) != stamp(status):
            raise ValueError(f"{path} has changed while it was read: wait until it is written, then open it again")
        if members >= MIN_CACHED_MEMBERS:
            _save(index, cached)
    return index


def _scan(path: Path, file: BinaryIO, nbytes: int, wanted: LabelMember | None) -> tuple[TarIndex, int]:
    """Return the index of a tar file of `nbytes` bytes, and its number of members."""
    offsets: list[int] = []
    sizes: list[int] = []
    labels: list[int | str] = []
    names: list[bytes] = []
    left_out: Counter[str] = Counter()
    members = 0
    source = wanted or DEFAULT_LABEL
    for key, sample in _samples(path, _members(path, file, nbytes), left_out):
        members += len(sample)
        images = {name: each for name, each in sample.items() if f".{name.rpartition('.')[2]}" in suffixes()}
        _refuse_dots(path, key, sample, images, source.extension)
        if len(images) > 1:  # beside jpg, seg.png is something else
            images = {name: each for name, each in images.items() if "." not in name} or images
        if len(images) != 1:
            found = "more than one image" if images else f"no image ({', '.join(suffixes())})"
            raise ValueError(
                f"{path}: sample {key} has {found} among its members {', '.join(sample)}; the members of a sample "
                f"must follow one another, and {KEY_RULE}"
            )
        member = sample.get(source.extension)
        if wanted is not None and member is None:
            raise ValueError(
                f"{path}: sample {key} has no member .{source.extension} for its label; it has {', '.join(sample)}; "
                + KEY_RULE
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
        for each in sample.values():
            if each is not image and each is not member:
                suffix = suffix_of(each.name)
                left_out[FURTHER_IMAGE * (suffix == suffix_of(image.name)) + suffix] += 1
        offsets.append(image.offset_data)
        sizes.append(image.size)
        names.append(image.name.encode("utf-8", "surrogateescape"))
    label_names = None
    if labels and isinstance(labels[0], str):
        label_names = tuple(sorted({*map(str, labels)}))
        name_indices = {name: index for index, name in enumerate(label_names)}
        labels = [name_indices[str(name)] for name in labels]
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


def _refuse_dots(
    path: Path, key: str, sample: Mapping[str, tarfile.TarInfo], images: Mapping[str, tarfile.TarInfo], label: str
) -> None:
    """Raise `ValueError` if the names of a sample's images have dots of their own, as `22.05.jpg` and `photo.1.jpg`.

    Such images are numbered, and in a sample with another one; or they have labels of their own, and their sample none.
    """
    for name, member in images.items():
        more = name.rpartition(".")[0]
        is_numbered = len(images) > 1 and more.rpartition(".")[2].isdecimal()
        has_own_label = bool(more) and label not in sample and f"{more}.{label}" in sample
        if is_numbered or has_own_label:
            raise ValueError(
                f"{path}: {member.name!r} is read as member {name!r} of sample {key!r}, since {KEY_RULE}; write the "
                "tar file with other names, such as '_' for this dot"
            )


def _samples(
    path: Path, members: Iterator[tarfile.TarInfo], left_out: Counter[str]
) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Yield the key of each sample, and its members by extension.

    A sample is a run of members with the same key. As in WebDataset, the key is the path up to the first dot in the
    file name, and the extension is what follows. Files without an extension belong to no sample and are counted in
    `left_out`. Hidden files and those in hidden folders, such as `__MACOSX`, are ignored.
    """
    key = ""
    sample: dict[str, tarfile.TarInfo] = {}
    for member in members:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if is_hidden(name) or any(is_hidden(each) for each in folder.split("/") if each != "."):
            continue
        if not dot:
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
    """Yield the plain files in a tar file; raise `ValueError` if it is not a tar file, or does not end as it should."""
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
            raise ValueError(f"{path}: member {name} leads out of the folder it would be unpacked to; rename it")
        if not (member.isreg() or member.isdir()) or member.issparse():
            kind = "sparse" if member.issparse() else "a link" if member.islnk() or member.issym() else "special"
            raise ValueError(f"{path}: member {name} is {kind}; only plain files can be read without unpacking")
        size = member.size if member.isreg() else 0
        end = member.offset_data + -(-size // BLOCK_NBYTES) * BLOCK_NBYTES
        if member.offset_data + size > nbytes:
            raise ValueError(f"{path} was cut off within {name}: it has {nbytes:,} bytes, and needs {end:,} for it")
        last = name
        if member.isreg():
            yield member
    # tarfile treats a damaged header, and the end of the file, as the end of the archive.
    file.seek(end)
    block = file.read(BLOCK_NBYTES)
    if len(block) < BLOCK_NBYTES or any(block):
        cause = "has no end mark" if not block else "is damaged or was cut off"
        raise ValueError(f"{path} {cause} after {last}; make it again")
    while rest := file.read(1 << 20):
        if any(rest):
            raise ValueError(f"{path} goes on after its end mark; tar files joined into one cannot be read, split them")


def _headers(path: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the members that tarfile finds; raise `ValueError` for a malformed header."""
    last = "its beginning"
    try:
        with tarfile.open(fileobj=cast("BinaryIO", _BoundedFile(file)), mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all in memory
                if member.size < 0:
                    raise tarfile.TarError(f"{member.name} has {member.size} bytes")
                last = member.name
                yield member
    except (tarfile.TarError, *MALFORMED) as error:
        raise ValueError(f"{path} is not a tar file, or is damaged after {last}: {error}") from None


class _BoundedFile:
    """A file that refuses large reads: tarfile allocates as many bytes as a header claims to have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tell = file.tell
        self.seek = file.seek

    def read(self, nbytes: int) -> bytes:
        if not 0 <= nbytes <= MAX_READ_NBYTES:
            raise tarfile.TarError(f"a header of {nbytes:,} bytes")
        return self._file.read(nbytes)


def _load(cached: Path) -> TarIndex | None:
    """Return the cached index at `cached`, or None if there is none that can be read."""
    try:
        with cached.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
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
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the headers can be read again
        return None


def _save(index: TarIndex, cached: Path) -> None:
    arrays: dict[str, Any] = {"offsets": index.offsets, "sizes": index.sizes, "name_ends": index.name_ends}
    arrays["names"] = np.frombuffer(index.names, np.uint8)
    more = json.dumps({"label_names": index.label_names, "left_out": index.left_out})
    arrays["more"] = np.frombuffer(more.encode(), np.uint8)
    if index.labels is not None:
        arrays["labels"] = index.labels
    # The cache only saves time, so failing to write it is not an error.
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        with replacing(cached, durable=False) as file:
            np.savez(file, **arrays)
