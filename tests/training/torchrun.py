"""Torchrun, with two ranks on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 240


def run_ranks(program: str, *arguments: str | Path, restarts: int = 0) -> None:
    """Run `program ARGUMENTS` on two ranks under torchrun; raise `AssertionError` if it fails.

    Parameters
    ----------
    program : str
        Path of the program.
    restarts : int
        How often torchrun restarts the ranks after a failure.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--max-restarts={restarts}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"),
            *(program, *map(str, arguments)),
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
