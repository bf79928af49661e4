"""A process whose file system fails, or which is killed, at a chosen call."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.torture.harness import HERE, Server

COMPILER = shutil.which("gcc")


def tree(folder: Path) -> dict[str, bytes]:
    """All files below `folder`, with their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def all_below(folder: Path) -> dict[str, bytes | None]:
    """As `tree`, with folders, too, as None."""
    return {**{str(path.relative_to(folder)): None for path in folder.rglob("*")}, **tree(folder)}


class FailingFiles(Server):
    """Runs the tasks of `tried_process.py`, each in a process of its own and a new folder; see `Server`."""

    def __init__(self, folder: Path, within: Sequence[str] = ()) -> None:
        assert COMPILER is not None
        self._folder = folder
        self._made = 0
        library = folder / "calls.so"
        subprocess.run(
            [COMPILER, "-O2", "-shared", "-fPIC", "-o", library, HERE / "file_system_calls.c", "-ldl"], check=True
        )
        variables = {"LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
        super().__init__("tried_process.py", folder, within=within, **variables)

    def place(self) -> Path:
        """A new folder."""
        self._made += 1
        folder = self._folder / f"try-{self._made}"
        folder.mkdir()
        return folder

    def run(self, task: str, folder: Path, action: str = "count", **request: Any) -> dict[str, Any]:
        """What came of `task` in `folder`: at least an `outcome`, "done", "error", "killed" or "hung"."""
        answer: dict[str, Any] = self.ask({"task": task, "folder": str(folder), "action": action, **request})
        return answer
