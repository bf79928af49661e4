"""The programs of docs/ranks-and-serving.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import output_of

GUIDE = (Path(__file__).parents[2] / "docs" / "ranks-and-serving.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PROGRAMS[name])
    output_of(name, cwd=tmp_path, BACKEND_PRIORITY_CPU="1")
    assert set(PROGRAMS) == {"train.py", "examine.py", "stop.py", "serve.py"}
