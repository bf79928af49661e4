"""On systems without Linux's modules and calls, loaders and stores work, and what measures refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_python

# What Windows lacks; macOS lacks some of it.
HIDDEN = """
import os, signal, sys
import psutil  # of this system, which it asks for what it hides below
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for name in ("sched_getaffinity", "sched_setaffinity", "register_at_fork", "fork"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
"""


def test_loaders_and_stores_work(tmp_path: Path) -> None:
    program = """
import numpy as np, etl, presave
records = [{"features": np.full(3, number, np.float32), "label": number} for number in range(10)]
store = presave.write(sys.argv[1] + "/s", records)
with etl.AsyncIterator(etl.PresavedIterator(store, etl.Pipeline([]), 4, shuffle=True)) as train:
    print(sorted(label for _, labels in train for label in labels.tolist()))
"""
    done = run_python("-c", HIDDEN + program, tmp_path)
    assert done.stdout == f"{list(range(10))}\n", done.stderr


@pytest.mark.parametrize(
    "program",
    ["from etl.commands import main; sys.exit(main(['compare', sys.argv[1]]))", "import etl; etl.compare(sys.argv[1])"],
)
def test_what_measures_refuses_in_one_line(program: str, tmp_path: Path) -> None:
    done = run_python("-c", HIDDEN + program, tmp_path)
    assert done.returncode in (1, 2)
    assert "etl measures on Linux only" in done.stderr.splitlines()[-1]
