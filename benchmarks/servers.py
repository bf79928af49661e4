"""Servers that measure the installed packages, or those of a commit, with the working tree's instruments.

A server imports all that measuring needs, once, and forks a fresh process for every measurement.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring.layout import draw_environment, import_in_drawn_order
from benchmarks.measuring.processes import Server
from benchmarks.public_names import load_kernels

ROOT = Path(__file__).parents[1]
ISOLATED_MAIN = Path(__file__).with_name("isolated_main.py")
# Enough for all metrics of one cell.
TIMEOUT_SECONDS = 900.0
LIBRARIES = ("h5py", "numba", "PIL.Image", "torch")


def start_server(
    name: str,
    prepare: str,
    request: dict[str, Any],
    *,
    packages: Path | None = None,
    hash_seed: int = 0,
    environment: Mapping[str, str | None] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Server:
    """Start a server, which `prepare` makes ready for its sessions.

    Parameters
    ----------
    name, request, hash_seed, timeout
        As `Server` takes them.
    environment : mapping of str to str or None, optional
        Variables to set or, if None, to remove, besides those that each server draws.
    prepare : str
        The `module:function` of a `measuring.server.Prepare` in this folder.
    packages : path or None
        The folder with the packages to be measured; None measures the installed ones.
    """
    variables = {**draw_environment(), **(environment or {})}
    if packages is not None:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ISOLATED_MAIN), "measuring.server:serve", f"benchmarks.{prepare}"]
    return Server(name, command, request, timeout=timeout, hash_seed=hash_seed, environment=variables)


def import_everything() -> None:
    """Import torch, numba and everything else that a measurement needs, in random order."""
    import_in_drawn_order(name for name in LIBRARIES if importlib.util.find_spec(name) is not None)
    load_kernels()
    import torch._dynamo  # noqa: F401 - torch.optim imports it when the first optimizer is made
