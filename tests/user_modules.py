"""Modules and packages of users, written into a temporary folder."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def user_module(folder: Path, name: str, code: str) -> Iterator[None]:
    """Write the module `name` into `folder`, work there, and forget the module afterwards."""
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        try:
            yield
        finally:
            sys.modules.pop(name, None)


def write_package(folder: Path, name: str, code: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write a package of one module as pip installs it, with its entry points by group and name."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, values in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in values.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
