"""The guide for contributors names files, make targets and code that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
CODE = (
    "\n".join(path.read_text() for folder in ("presave", "etl", "tests") for path in (ROOT / folder).rglob("*.py"))
    + (ROOT / "benchmarks/workload.py").read_text()
)
QUOTED = re.findall(r"`([^`\n]+)`", GUIDE)
PATHS = sorted(
    {each for each in QUOTED if re.fullmatch(r"\.?[a-z_0-9]+(/[\w.]+)*(/|\.\w+)", each) and "NAME" not in each}
)
# What its reader runs or writes, and the metrics of asv's pages.
OTHER = {"slow", "mypy", "presave", "etl"}
NAMES = sorted({each for each in QUOTED if re.fullmatch(r"[A-Za-z_]{3,}", each)} - OTHER)


def test_it_is_short() -> None:
    assert len(GUIDE.splitlines()) <= 120


@pytest.mark.parametrize("path", [each for each in PATHS if each not in (".venv/", ".asv/")])
def test_every_file_that_it_names_exists(path: str) -> None:
    assert (ROOT / path).exists() or (ROOT / "benchmarks" / path).exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_code_that_it_mentions_exists(name: str) -> None:
    assert re.search(rf"\b{name}\b", CODE)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([\w-]+)", GUIDE))))
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
