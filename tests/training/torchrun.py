"""Torchrun, with two ranks on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.programs import output_of

LIMIT_SECONDS = 240


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, port: int = 1, **more: object) -> None:
    """Let this process be a rank that a launcher has started, with `more` variables."""
    address = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in {**address, **more}.items():
        monkeypatch.setenv(name, str(value))


def run_ranks(program: str, *arguments: str | Path, restarts: int = 0) -> None:
    """Run `program ARGUMENTS` on two ranks under torchrun; raise `AssertionError` if it fails.

    Parameters
    ----------
    program : str
        Path of the program.
    restarts : int
        How often torchrun restarts the ranks after a failure.
    """
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--max-restarts={restarts}")
    local = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost")
    environment = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    output_of(*torchrun, *local, program, *arguments, timeout=LIMIT_SECONDS, **environment)
