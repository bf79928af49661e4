"""Records for tests of stores, the files that are written of them, and calls that fail."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import pytest

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


def fail_at(patch: pytest.MonkeyPatch, module: Any, name: str, number: int, only_folders: bool = False) -> None:
    """Let a function of descriptors fail with an error of the system, for folders alone if `only_folders`."""
    original = getattr(module, name)

    def failing(descriptor: int, *more: Any) -> Any:
        if only_folders and not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return original(descriptor, *more)
        raise OSError(number, os.strerror(number))

    patch.setattr(module, name, failing)
