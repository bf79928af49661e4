"""A process whose file system fails, or which is killed, at a chosen call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

HERE = Path(__file__).parent
COMPILER = shutil.which("gcc")


def tree(folder: Path) -> dict[str, bytes]:
    """All files below `folder`, with their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def all_below(folder: Path) -> dict[str, bytes | None]:
    """As `tree`, with folders, too, as None."""
    return {**{str(path.relative_to(folder)): None for path in folder.rglob("*")}, **tree(folder)}


class FailingFiles:
    """A context manager: runs the tasks of `tried_process.py`, each in a process of its own and a new folder; all of
    them in a process that the command `within` starts.
    """

    def __init__(self, folder: Path, within: Sequence[str] = ()) -> None:
        self._folder = folder
        self._within = within
        self._made = 0

    def __enter__(self) -> Self:
        assert COMPILER is not None
        library = self._folder / "calls.so"
        source = HERE / "file_system_calls.c"
        subprocess.run([COMPILER, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        paths = (str(HERE), str(HERE.parent), str(HERE.parents[1]), os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            [*self._within, sys.executable, str(HERE / "tried_process.py"), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # torch and HDF5 speak there of what fails
            text=True,
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        assert self._answer() == "ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def place(self) -> Path:
        """A new folder."""
        self._made += 1
        folder = self._folder / f"try-{self._made}"
        folder.mkdir()
        return folder

    def run(self, task: str, folder: Path, action: str = "count", **request: Any) -> dict[str, Any]:
        """What came of `task` in `folder`: at least an `outcome`, "done", "error", "killed" or "hung"."""
        assert self._process.stdin is not None
        print(json.dumps({"task": task, "folder": str(folder), "action": action, **request}), file=self._process.stdin)
        self._process.stdin.flush()
        answer: dict[str, Any] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())
