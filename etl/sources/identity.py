"""The identity of the records of a source, so that other records of the same number are not taken for them.

There are two kinds, for two questions:

- `identity`, or `origin(index)` if each record has a file of its own: have the files changed? Size and times, as
  `presave.write` compares them before it resumes. Nothing is read, and no change escapes, but a copy of the files has
  another identity.
- `record_digests`: are these the same records? Names, labels and samples of the content, as states of iterators and the
  provenance of stores hold them. A copy of the files has the same digests.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import presave
from etl.sources.record import chosen_item
from presave.errors import is_shortage
from presave.files import checksum_bytes
from presave.thread_safety import is_torch_subset

# A digest covers so much of the content of all files together, in blocks that are spread evenly. States hold digests,
# so these numbers must not change.
SAMPLED_BLOCKS, BLOCK_NBYTES = 64, 64 << 10
# File systems tell changes apart that are this long apart: a tick of the kernel, or two seconds if they count seconds.
TICK_NS, COARSE_NS = 20_000_000, 2_000_000_000
# What a `Subset` of torch has chosen: in digests, and in an identity.
INDICES, CHOICE = "indices", "the choice of records"


class Identified:
    """Identifies the records of a source that reads files. `_identified` says which files and labels."""

    def _identified(self) -> tuple[Sequence[str], Sequence[str | Path], Any]:
        """Return the names and paths of the files, in the order of their records, and the labels."""
        raise NotImplementedError

    def record_digests(self) -> dict[str, str]:
        """Return digests of the names of the files, of the labels, and of samples of the content."""
        return _digest_files(*self._identified())


class FileIdentity(Identified):
    """Identifies also the files of a source in which a file holds many records."""

    @property
    def identity(self) -> dict[str, str]:
        """Size and times of each file, by name, and a digest of the labels."""
        names, paths, labels = self._identified()
        stamps = dict(zip(names, map(file_stamp, paths), strict=True))
        return {**stamps, "the labels": _digest_labels(labels)}


def source_digests(source: Any) -> dict[str, str]:
    """Return digests that identify the records of `source`, by what they cover; empty if nothing is known.

    No record of a user's source is read, except of a list, tuple or `TensorDataset`. Its attribute `identity`, if it
    has one, identifies it.
    """
    if isinstance(source, presave.Store):
        return store_digests(source.manifest)
    if is_torch_subset(source):
        digests = source_digests(source.dataset)
        return {**digests, INDICES: _digest_indices(source, digests.get(INDICES, ""))}
    digest = getattr(source, "record_digests", None)
    if digest is not None:
        found: dict[str, str] = digest()
        return found
    if _is_in_memory(source):
        return _digest_items([source[each] for each in range(0, len(source), max(1, len(source) // SAMPLED_BLOCKS))])
    samples = [listed_sample(source, each) for each in range(len(source))] if hasattr(source, "samples") else [None]
    if None not in samples:
        paths = [str(sample[0]) for sample in samples]
        return _digest_files(relative_names(list(map(Path, paths))), paths, [tuple(sample[1:]) for sample in samples])
    identity = source_identity(source)
    return {} if identity is None else {"identity": checksum_bytes(json.dumps(identity).encode())}


def source_identity(source: Any) -> Mapping[str, Any] | None:
    """Return the `identity` of a source; None if it has none. In that of a `Subset` of torch is its choice, too."""
    if is_torch_subset(source):
        of_all = source_identity(source.dataset)
        return None if of_all is None else {**of_all, CHOICE: _digest_indices(source, of_all.get(CHOICE, ""))}
    identity = getattr(source, "identity", None)  # of a data set, it may be anything
    return identity if isinstance(identity, Mapping) else None


def source_origin(source: Any, index: int) -> str:
    """Return what identifies record `index` of a source: its file, or its content in memory; "" if that is unknown."""
    source, index = chosen_item(source, index)
    origin = getattr(source, "origin", None)
    if callable(origin):
        return str(origin(index))
    sample = listed_sample(source, index)
    if sample is not None:
        return f"{sample[0]} ({file_stamp(sample[0])}), {sample[1:]!r}"
    return _digest_items(source[index]).get("records", "") if _is_in_memory(source) else ""


def listed_sample(dataset: Any, index: int) -> Any:
    """Return the file and label of record `index` if the data set lists its `samples`, as torchvision's do, or None."""
    samples = getattr(dataset, "samples", None)
    sample = samples[index] if isinstance(samples, (list, tuple)) and index < len(samples) else None
    return sample if isinstance(sample, (tuple, list)) and sample and isinstance(sample[0], (str, Path)) else None


def store_digests(manifest: presave.Manifest) -> dict[str, str]:
    """Return digests of the records in a store: of those that it was written from, if known, and its content."""
    digests = manifest.provenance.get("digests")
    return {**(digests if isinstance(digests, dict) else {}), "store": manifest.content}


def digest_difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return in which digests two sources differ, in words; empty if they agree in what is known of both."""
    common = before.keys() & now.keys()
    if common - {"store", INDICES}:  # stores of the same source may hold other stages of it
        common.discard("store")
    return " and ".join(sorted(name for name in common if before[name] != now[name]))


def stamp(status: os.stat_result) -> str:
    """Return size and times of a file, which differ after any change to it."""
    # Not its inode: exFAT, SMB and FUSE number files anew after each mount, and more often.
    return f"{status.st_size:,} bytes, modified {status.st_mtime_ns}, changed {status.st_ctime_ns} ns"


def relative_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths of files relative to the folder that holds all of them."""
    absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - links are not followed
    folder = os.path.commonpath([os.path.dirname(path) for path in absolute])  # noqa: PTH120
    return [os.path.relpath(path, folder) for path in absolute]


def file_stamp(path: str | Path) -> str:
    """Return the stamp of a file that is about to be read. It waits until a further change will give another one."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a string, of a hundred thousand
    except OSError:
        return "missing"
    settle(status)
    return stamp(status)


def settle(status: os.stat_result) -> None:
    """Wait until a further change to a file will give it another time."""
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    granularity = TICK_NS if newest % 1_000_000_000 else COARSE_NS
    if 0 < (left := newest + granularity - time.time_ns()) <= granularity:
        time.sleep(left / 1e9)


def _digest_files(names: Sequence[str], paths: Sequence[str | Path], labels: Any) -> dict[str, str]:
    joined = "\0".join(names) if len(names) > 1 else ""  # a single file may be renamed
    return {
        "names": checksum_bytes(os.fsencode(joined)),
        "labels": _digest_labels(labels),
        "content": _digest_content(paths),
    }


def _digest_indices(subset: Any, before: str) -> str:
    """Return the digest of the indices of a `Subset` of torch; `before` is that of what it chooses from, if any."""
    chosen = ",".join(map(format, subset.indices))  # of equal numbers the same, in a list, an array or a tensor
    return checksum_bytes(f"{before} {chosen}".encode())


def _digest_labels(labels: Any) -> str:
    content = labels.tobytes() if isinstance(labels, np.ndarray) else repr(labels).encode()
    return checksum_bytes(content)


def _digest_content(paths: Sequence[str | Path]) -> str:
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(len(paths), SAMPLED_BLOCKS)).astype(int)).tolist()
    blocks = SAMPLED_BLOCKS // max(1, len(chosen))
    return checksum_bytes("".join(_digest_file(paths[each], blocks) for each in chosen).encode())


def _digest_file(path: str | Path, blocks: int) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not wait for a writer
    except OSError as error:
        if is_shortage(error):
            raise
        return "unreadable"
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "special"
        if status.st_size <= blocks * BLOCK_NBYTES:
            return checksum_bytes(file.read(status.st_size))
        offsets = np.linspace(0, status.st_size - BLOCK_NBYTES, blocks).astype(np.int64).tolist()
        parts = [os.pread(descriptor, BLOCK_NBYTES, offset) for offset in offsets]
        return checksum_bytes(b"".join([str(status.st_size).encode(), *parts]))


def _is_in_memory(source: Any) -> bool:
    """Return True if reading an item costs nothing and has no effect."""
    torch = sys.modules.get("torch")
    return type(source) in (list, tuple) or (torch is not None and type(source) is torch.utils.data.TensorDataset)


def _digest_items(items: Any) -> dict[str, str]:
    digest = xxhash.xxh3_128()
    try:
        _update(digest, items)
    except Exception:  # noqa: BLE001 - of something that is not an array, or cannot be read
        return {}
    return {"records": digest.hexdigest()}


def _update(digest: xxhash.xxh3_128, item: Any) -> None:
    if isinstance(item, (tuple, list, Mapping)):
        digest.update(f"{type(item).__name__} {len(item)}".encode())
        for each in item.values() if isinstance(item, Mapping) else item:
            _update(digest, each)
        return
    array = np.asarray(item.detach() if hasattr(item, "detach") else item)  # a tensor may require a gradient
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{type(item).__name__} is not an array of numbers")
    digest.update(f"{array.dtype.str} {array.shape}".encode())
    if array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
