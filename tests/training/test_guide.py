"""The programs of docs/ranks-and-serving.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import output_of

DOCS = Path(__file__).parents[2] / "docs"


def programs_of(guide: str) -> dict[str, str]:
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL))


PROGRAMS = programs_of("ranks-and-serving.md")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / "my_loaders.py").write_text(programs_of("own-loaders.md")["my_loaders.py"])
    (tmp_path / name).write_text(PROGRAMS[name])
    output_of(name, cwd=tmp_path, BACKEND_PRIORITY_CPU="1")
    assert set(PROGRAMS) == {"train.py", "my_rank_loaders.py", "examine.py", "stop.py", "serve.py"}
