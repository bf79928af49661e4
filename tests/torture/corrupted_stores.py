"""Stores with one thing wrong: a flipped bit, a file cut off, an edited manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch  # noqa: F401 - here once, and not in every process

import presave
from tests.torture.attempts import Attempts, check_names
from tests.torture.mutations import flip, mutate

FLIPPED, CUT_OFF, EDITED = "one bit flipped", "a file cut off", "the manifest edited"
RECORDS = [
    {"x": np.arange(3, dtype="<i2") + number, "y": number, "ragged": np.full((number % 3, 2), number, "u1")}
    for number in range(4)
]
# Two shards of two records each, and compressed as well as not.
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"format": name, "shard_nbytes": 40} for name in presave.formats()},
    "hdf5 gzip": {"format": "hdf5", "shard_nbytes": 40, "options": {"compression": "gzip"}},
}
MANIFEST = "manifest.json"


def attempts(change: str, kind: str, folder: Path) -> Attempts:
    store = Corrupted(write_store(folder / kind, KINDS[kind]))
    changed = {FLIPPED: store.flipped, CUT_OFF: store.shortened, EDITED: store.edited}[change]

    def show(number: int) -> str:
        file, content = changed(number)
        return f"{file.name}: {content!r}"

    return Attempts(lambda number: store.attempt(*changed(number)), show)


def write_store(folder: Path, settings: dict[str, Any]) -> Path:
    presave.write(folder, RECORDS, ragged=["ragged"], **settings).close()
    return folder


class Corrupted:
    """A store whose files are changed and put back, one for each attempt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = {file: file.read_bytes() for file in sorted(folder.iterdir())}
        self._data = [file for file in self._contents if file.name != MANIFEST]
        self._expected = read_all(folder)

    def flipped(self, number: int) -> tuple[Path, bytes]:
        # The manifest has most of the bits of so small a store, and should not have most of the flips.
        random = Random(number)
        file = random.choice(self._data) if number % 5 else self._folder / MANIFEST
        changed = bytearray(self._contents[file])
        flip(random, changed)
        return file, bytes(changed)

    def shortened(self, number: int) -> tuple[Path, bytes]:
        random = Random(number)
        file, content = random.choice(list(self._contents.items()))
        return file, content[: random.randrange(len(content))]

    def edited(self, number: int) -> tuple[Path, bytes]:
        random = Random(number)
        file = self._folder / MANIFEST
        while True:
            content = self._contents[file]
            changed = edit_json(random, content) if number % 2 else mutate(random, content)
            if changed != content:
                return file, changed

    def attempt(self, file: Path, content: bytes) -> str:
        file.write_bytes(content)
        try:
            self._check_is_found(file)
            found = read_all(self._folder)
        except presave.StoreError as error:
            check_names(error, self._folder)
            return "found by verify, refused when read"
        finally:
            file.write_bytes(self._contents[file])
        if file.name == MANIFEST:
            raise AssertionError(f"{file} was read as if it were whole")
        is_same = str(found) == str(self._expected)
        return f"found by verify, read as {'they were' if is_same else 'other values'} without it"

    def _check_is_found(self, file: Path) -> None:
        try:
            faults = presave.verify(self._folder)
        except presave.StoreError as error:
            faults = [str(error)]
        assert faults, f"verify finds nothing wrong with {file}"
        assert all(fault.startswith(f"{file}: ") for fault in faults), faults
        try:
            presave.open_store(self._folder, trusted=True, verify=True)
        except presave.StoreError as error:
            check_names(error, self._folder)
        else:
            raise AssertionError(f"verify=True opens a store with a damaged {file}")


def read_all(folder: Path) -> list[Any]:
    """Every value of a store, in all the ways of reading it that there are."""
    with presave.open_store(folder, trusted=True) as store:
        numbers = range(min(len(store), 10))  # a manifest may claim any number
        return [
            store.gather(numbers),
            store.view(0, min(2, len(store))),
            store.shapes("ragged", numbers) if "ragged" in store.fields else None,
            store[-1] if len(store) else None,
        ]


def edit_json(random: Random, content: bytes) -> bytes:
    """A manifest with one of its values replaced, removed or doubled, written as presave writes it."""
    manifest = json.loads(content)
    parent, key = random.choice(list(_places(manifest)))
    change = random.randrange(3)
    if change == 0:
        del parent[key]
    elif change == 1 and isinstance(parent, list):
        parent.insert(key, parent[key])
    else:
        parent[key] = random.choice(
            (None, True, 0, -1, 3, 2**31, 2**60, 2**63, 10**400, 0.5, float("inf"), float("nan"), "", "x", "\0", "..",
             "\ud800", "x" * 300, "<f8", ">i2", "O", "|V3", [], [1], [None], [0, 2**60], [1] * 70, {}, {"x": 1})
        )  # fmt: skip
    return json.dumps(manifest, indent=1).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])
