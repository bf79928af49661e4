"""Python in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_python(
    *arguments: str | Path, cwd: Path | None = None, timeout: float = 180, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments`, and with these environment variables besides those of this process."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output_of(*arguments: str | Path, **settings: Any) -> str:
    """Return what `run_python` prints, after checking that it succeeds."""
    done = run_python(*arguments, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout
