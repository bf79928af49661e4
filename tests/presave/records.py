"""Records for tests of stores, and the files that are written of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

import presave

NBYTES = 40
FIRE = OSError("the disk is on fire")


class Numbered:
    """`count` records of 40 bytes that are their number. They note their reads; those in `errors` raise.

    Parameters
    ----------
    attributes
        Further ones, such as `identity`.
    """

    thread_safe = True

    def __init__(
        self, count: int, errors: Mapping[int, BaseException] = MappingProxyType({}), **attributes: Any
    ) -> None:
        self.count = count
        self.errors = dict(errors)
        self.reads: list[int] = []
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.count:
            raise IndexError(index)
        self.reads.append(index)
        if index in self.errors:
            raise self.errors[index]
        return {"x": np.full(4, index), "y": index}


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in `folder`."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def interrupt(_: presave.Progress) -> NoReturn:
    """Interrupt a write, as its `progress`."""
    raise KeyboardInterrupt


def flip(file: Path) -> None:
    """Flip the last bit of a file."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
