"""Checking a store against its manifest, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from presave.checksum import checksum_file
from presave.manifest import MANIFEST_NAME, StoredFile, load_manifest
from presave.plain_file import why_not_own


def verify(path: str | Path, progress: Callable[[int, int], None] | None = None, *, trusted: bool = False) -> list[str]:
    """Read every file of the store at `path`; one line for each fault, naming the file. An empty list: it is whole.

    `progress` is called with bytes read and bytes in all. A file that is a link is a fault, and not read, unless the
    store is `trusted`; a pipe or device always is. Raises `StoreError` where the manifest itself is missing,
    edited or unreadable, since then nothing can be said of the rest.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    expected = {file.name: file for shard in manifest.shards for file in shard.files}
    faults = []
    read = 0
    for file in expected.values():
        fault = _fault(folder / file.name, file, trusted)
        if fault is not None:
            faults.append(fault)
        read += file.nbytes
        if progress is not None:
            progress(read, manifest.nbytes)
    strangers = sorted(found.name for found in folder.iterdir() if found.name not in {*expected, MANIFEST_NAME})
    faults.extend(f"{folder / name}: not in the manifest" for name in strangers)
    return faults


def _fault(path: Path, file: StoredFile, trusted: bool) -> str | None:
    reason = why_not_own(path, links=trusted)
    if reason is not None:
        return f"{path}: {reason}"
    try:
        nbytes = path.stat().st_size
        if nbytes != file.nbytes:
            return f"{path}: {nbytes:,} bytes; the manifest says {file.nbytes:,}"
        found = checksum_file(path)
    except FileNotFoundError:
        return f"{path}: missing"
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    if found != file.xxh3_128:
        return f"{path}: its bytes have changed (XXH3 {found}; the manifest says {file.xxh3_128})"
    return None
