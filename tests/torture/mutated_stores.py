"""Mutated files of stores, and manifests."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py

import presave
from presave.files import checksum_bytes
from tests.torture.attempts import check_names
from tests.torture.corrupted_stores import KINDS, MANIFEST, edit_json, read_all, write_store
from tests.torture.mutated_input import READ, REFUSED, Input


def _shard(folder: Path, kind: str, repair: Callable[[bytes], bytes] = bytes) -> Input:
    """Files of a store, written in place of its first shard's; opened without verify."""
    store = write_store(folder / f"store {kind}", KINDS[kind])
    files = sorted(file for file in store.iterdir() if "-00000" in file.name)
    corpus = [file.read_bytes() for file in files]

    def read(content: bytes) -> None:
        # Contents go to the file that they are nearest to: one that begins alike, otherwise the first.
        file = max(files, key=lambda each: _alike(content, corpus[files.index(each)]))
        file.write_bytes(content)
        try:
            read_all(store)
        finally:
            file.write_bytes(corpus[files.index(file)])

    return Input(corpus, read, (presave.StoreError,), str(store), repair)


def _alike(first: bytes, second: bytes) -> int:
    return sum(a == b for a, b in zip(first, second, strict=False))


def _early_hdf5(folder: Path) -> Input:
    """As `_shard`, of files in HDF5's early format, whose metadata have no checksums."""
    found = _shard(folder, "hdf5 gzip")
    name = next((folder / "store hdf5 gzip").glob("*-00000.h5"))
    corpus = []
    for options in ({}, {"chunks": True, "compression": "gzip", "shuffle": True}, {"chunks": True, "fletcher32": True}):
        path = folder / "early.h5"
        with h5py.File(name, "r") as latest, h5py.File(path, "w", libver="earliest") as early:
            for column, data in latest.items():
                early.create_dataset(column, data=data[()], **(options if data.size else {}))
        corpus.append(path.read_bytes())
    return Input(corpus, found.read, found.documented, found.named)


def _repair_zip(content: bytes) -> bytes:
    """A zip file of the same members, with checksums that fit and the pickle mutated."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = []
            for info in archive.infolist():
                info.CRC = 0
                archive.NameToInfo[info.filename] = info
                with archive.open(info) as member:
                    member._expected_crc = None  # type: ignore[attr-defined]
                    members.append((info.filename, member.read()))
    except Exception:  # noqa: BLE001 - no zip file any more
        return content
    repaired = io.BytesIO()
    with zipfile.ZipFile(repaired, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return repaired.getvalue()


def _manifest(folder: Path, kind: str) -> Input:
    """Manifests whose checksum fits, as somebody would forge them."""
    store = write_store(folder / f"manifest {kind}", KINDS[kind])
    file = store / MANIFEST
    corpus = [_without_checksum(file.read_bytes())]

    def read(content: bytes) -> str:
        outcome = READ
        file.write_bytes(with_checksum(content))
        for each in (presave.verify, read_all):
            try:
                each(store)
            except presave.StoreError as error:
                check_names(error, store)
                outcome = REFUSED
            except MemoryError:  # of a field that is said to be larger than memory
                outcome = REFUSED
        return outcome

    return Input(corpus, read, (), mutate=edit_json)


def _without_checksum(encoded: bytes) -> bytes:
    content = json.loads(encoded)
    del content["checksum"]
    return json.dumps(content, indent=1).encode()


def with_checksum(encoded: bytes) -> bytes:
    """A manifest with a checksum that fits its bytes."""
    body = re.sub(rb"\s*}\s*\Z", b"", encoded)
    return body + f',\n "checksum": "{checksum_bytes(body + chr(10).encode() + b"}")}"\n}}'.encode()


STORES: dict[str, Callable[[Path], Input]] = {
    "npy": partial(_shard, kind="npy"),
    "HDF5": partial(_shard, kind="hdf5"),
    "HDF5, gzip": partial(_shard, kind="hdf5 gzip"),
    "HDF5 of other programs": _early_hdf5,
    "safetensors": partial(_shard, kind="safetensors"),
    "torch": partial(_shard, kind="torch", repair=_repair_zip),
    **{f"manifest of {kind}": partial(_manifest, kind=kind) for kind in KINDS},
}
