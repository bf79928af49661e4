"""A directory of generated data: made whole or not at all, and only once."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKER = "dataset.json"


def make_once(directory: str | Path, description: dict[str, Any], fill: Callable[[Path], None]) -> bool:
    """Have `fill` make the data of `description` (JSON values) in `directory`, unless it is there; whether it was made.

    It is made in a temporary folder beside `directory` and renamed when complete. Two processes may do so at the same
    time: the first to finish wins. Raises `ValueError` where `directory` holds something else.
    """
    target = Path(directory)
    if _holds(target, description):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        fill(folder)
        (folder / MARKER).write_text(json.dumps(description, indent=1) + "\n")
        folder.chmod(0o755)  # mkdtemp makes it private to its owner
        try:
            os.rename(folder, target)
        except OSError:
            if not _holds(target, description):
                raise
            return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _holds(target: Path, description: dict[str, Any]) -> bool:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    marker = target / MARKER
    try:
        found = json.loads(marker.read_bytes()) if marker.is_file() else None
    except ValueError as error:
        raise ValueError(f"{marker} is damaged ({error}); delete {target} or choose another directory") from error
    if found != description:
        holds = f"{found}" if found is not None else "files that were not made by this command"
        raise ValueError(f"{target} holds {holds}, not {description}; delete it or choose another directory")
    return True
