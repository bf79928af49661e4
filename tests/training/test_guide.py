"""The programs of docs/ranks-and-serving.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "ranks-and-serving.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        env={**os.environ, "BACKEND_PRIORITY_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(PROGRAMS) == {"train.py", "examine.py", "stop.py", "serve.py"}
