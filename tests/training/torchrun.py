"""Torchrun, with two ranks on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 120


def run_ranks(program: str, what: str, folder: Path, *options: str) -> None:
    """Run `program WHAT FOLDER` on two ranks under torchrun; raise `AssertionError` if it fails.

    Parameters
    ----------
    program : str
        Path of the program.
    what : str
        What it is to do.
    folder : Path
        Where it writes.
    *options : str
        Options of torchrun.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *options),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"),
            *(program, what, str(folder)),
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
