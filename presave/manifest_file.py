"""The manifest file: a small JSON file that describes a store. A folder without one is not a store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from presave.errors import StoreError, is_shortage, shortage_error
from presave.files import checksum_bytes, read_regular_file, sync
from presave.folder_lock import is_locked
from presave.manifest import Manifest
from presave.validate import check_sizes, parse_manifest

MANIFEST_NAME = "manifest.json"
LAYOUT_VERSION = 2
# A manifest of a hundred thousand shards, each with several files, takes half of this.
MAX_MANIFEST_NBYTES = 64 << 20


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into `folder` and flush it to the disk."""
    content = {"layout": LAYOUT_VERSION, **asdict(manifest)}
    content["checksum"] = checksum_bytes(_encode(content))
    encoded = _encode(content)
    if len(encoded) > MAX_MANIFEST_NBYTES:
        advice = _how_to_shorten(content, len(encoded))
        raise StoreError(f"{folder / MANIFEST_NAME} would have {len(encoded):,} bytes; {advice}")
    with (folder / MANIFEST_NAME).open("wb") as file:
        file.write(encoded)
        file.flush()
        sync(file.fileno())


def load_manifest(folder: Path) -> Manifest:
    """Return the manifest of the store in `folder`.

    Raises
    ------
    StoreError
        If there is no manifest, it was edited or written by another version of presave, it contradicts itself, or its
        sizes are impossible.

    Examples
    --------
    >>> store = presave.write("numbers.store", [{"features": np.zeros(3), "label": 1}])
    >>> presave.load_manifest(store.path).records
    1
    """
    path = folder / MANIFEST_NAME
    try:
        encoded = read_regular_file(path, MAX_MANIFEST_NBYTES)
    except FileNotFoundError:
        raise StoreError(_missing(folder)) from None
    except NotADirectoryError:
        raise StoreError(f"{folder} is a file; a store is a folder with a {MANIFEST_NAME}") from None
    except (ValueError, IsADirectoryError) as error:
        raise StoreError(f"{path}: not a presave manifest ({error}); presave the data again") from None
    except OSError as error:
        if is_shortage(error):
            raise shortage_error(path) from error
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        content = json.loads(encoded.decode())
        if content.get("layout") != LAYOUT_VERSION:
            raise StoreError(
                f"{path}: store layout {content.get('layout')!r}; this version of presave reads {LAYOUT_VERSION}"
            )
        if not _is_unchanged(encoded, content.pop("checksum", None)):
            raise StoreError(f"{path}: the manifest was changed after it was written; presave the data again")
        manifest = parse_manifest(content)
        check_sizes(manifest, folder)
    except StoreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: not a presave manifest ({error}); presave the data again") from error
    return manifest


def manifest_stamp(folder: Path) -> tuple[int, int] | None:
    """Return size and time of the manifest's file, which tell if it was written again; None if there is none."""
    try:
        status = (folder / MANIFEST_NAME).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def partial_folder(target: Path) -> Path:
    """Return the folder, beside `target`, in which a store is written until it is complete."""
    return target.with_name(f".{target.name}.partial")


def _missing(folder: Path) -> str:
    """Return the error message for a `folder` without a manifest."""
    if not folder.exists():
        partial = partial_folder(folder)
        if not partial.exists():
            return f"{folder} does not exist; write it with presave.write or `etl presave`"
        if is_locked(partial):
            return f"{folder} does not exist yet: a process is writing it (in {partial}); wait until it has ended"
        return (
            f"{folder} does not exist: a write of it was interrupted and left {partial}; write again to continue from "
            "there"
        )
    if folder.name.endswith(".partial"):
        return f"{folder} is an incomplete store: it has no {MANIFEST_NAME}; write again to continue from there"
    return f"{folder} is not a store: it has no {MANIFEST_NAME}"


def _how_to_shorten(content: Mapping[str, Any], nbytes: int) -> str:
    """Return what to do about a manifest of `nbytes` bytes."""
    for skipped in (content["skipped"], content["provenance"].get("skipped", ())):  # a conversion moves them there
        if 2 * len(_encode(skipped)) > nbytes:
            return f"{len(skipped):,} skipped records take most of that: leave them out of the source"
    return "write larger shards"


def _encode(content: Any) -> bytes:
    return json.dumps(content, indent=1).encode()


def _is_unchanged(encoded: bytes, checksum: Any) -> bool:
    """Return True if the file's bytes agree with the checksum at their end.

    The bytes are compared as they are: encoding the content again would take longer than the rest of opening a store of
    thousands of shards.
    """
    end = f',\n "checksum": "{checksum}"\n}}'.encode()
    return encoded.endswith(end) and checksum_bytes(encoded[: -len(end)] + b"\n}") == checksum
