"""Verification of a store against its manifest, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from presave.errors import is_shortage, shortage_error
from presave.files import checksum_file, unsupported_reason
from presave.manifest import StoredFile
from presave.manifest_file import MANIFEST_NAME, load_manifest


def verify(path: str | Path, progress: Callable[[int, int], None] | None = None, *, trusted: bool = False) -> list[str]:
    """Compare every file of a store with its manifest.

    Parameters
    ----------
    path : str or Path
        The store's folder.
    progress : callable, optional
        Called as `progress(checked, total)` after each file, both in bytes.
    trusted : bool
        Follow links. By default a file that is a link is a fault and is not read. Pipes and devices always are faults.

    Returns
    -------
    list of str
        One line for each fault, which begins with the name of the file. Empty if the store is intact.

    Raises
    ------
    StoreError
        If the manifest is missing, edited or unreadable: without it the other files cannot be checked. If too many
        files are open.

    Examples
    --------
    >>> presave.verify("photos.store")
    []
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    expected = {file.name: file for shard in manifest.shards for file in shard.files}
    faults = []
    read, total = 0, manifest.nbytes
    for file in expected.values():
        fault = _find_fault(folder / file.name, file, trusted)
        if fault is not None:
            faults.append(fault)
        read += file.nbytes
        if progress is not None:
            progress(read, total)
    names = {*expected, MANIFEST_NAME}
    extra = sorted(found.name for found in folder.iterdir() if found.name not in names)
    faults.extend(f"{folder / name}: not in the manifest" for name in extra)
    return faults


def _find_fault(path: Path, file: StoredFile, trusted: bool) -> str | None:
    reason = unsupported_reason(path, allow_links=trusted)
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
        if is_shortage(error):
            raise shortage_error(path) from error
        return f"{path}: cannot be read ({error.strerror})"
    if found != file.xxh3_128:
        return f"{path}: its bytes have changed (XXH3 {found}; the manifest says {file.xxh3_128})"
    return None
