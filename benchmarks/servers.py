"""Servers that measure the installed packages, or those of a commit, with the working tree's instruments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring.processes import Server

ROOT = Path(__file__).parents[1]
ALONE = Path(__file__).with_name("alone.py")
# A cell, with all of its figures.
TIMEOUT_SECONDS = 900.0


def start_server(
    name: str,
    prepare: str,
    request: dict[str, Any],
    *,
    interpreter: str = sys.executable,
    packages: Path | None = None,
    hash_seed: int = 0,
    environment: Mapping[str, str | None] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Server:
    """Start the server that `prepare`, the `module:function` of a file in this folder, makes ready.

    Parameters
    ----------
    name, request, hash_seed, environment, timeout
        As `Server` takes them.
    prepare : str
        A `measuring.server.Prepare`.
    interpreter : str
        Python, with numpy, psutil and xxhash.
    packages : path
        The folder with the packages to be measured; None measures those that are installed.
    """
    variables = dict(environment or {})
    if packages is not None:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    command = [interpreter, str(ALONE), "measuring.server:main", f"benchmarks.{prepare}"]
    return Server(name, command, request, timeout=timeout, hash_seed=hash_seed, environment=variables)
