"""The guides for contributors name files, make targets and code that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = {"CONTRIBUTING.md": 120, "docs/architecture.md": 150}
TEXTS = {name: (ROOT / name).read_text() for name in GUIDES}
CODE = (
    "\n".join(path.read_text() for folder in ("presave", "etl", "tests") for path in (ROOT / folder).rglob("*.py"))
    + (ROOT / "benchmarks/workload.py").read_text()
    + (ROOT / "benchmarks/cells.py").read_text()
)
# Made when they are needed.
MADE = (".venv/", ".asv/")
# Tools, and the packages themselves.
OTHER = {"slow", "mypy", "presave", "etl"}


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def paths() -> list[tuple[str, str]]:
    found = {
        (guide, each)
        for guide, text in TEXTS.items()
        for each in quoted(text)
        if re.fullmatch(r"\.?[a-z_0-9]+(/[\w.]+)*(/|\.(py|md|json|toml|txt))", each) and "NAME" not in each
    }
    return sorted(each for each in found if each[1] not in MADE)


def names() -> list[tuple[str, str]]:
    found = {(guide, each) for guide, text in TEXTS.items() for each in quoted(text)}
    return sorted(each for each in found if re.fullmatch(r"[A-Za-z_]{3,}", each[1]) and each[1] not in OTHER)


@pytest.mark.parametrize("guide", GUIDES)
def test_it_is_short(guide: str) -> None:
    assert len(TEXTS[guide].splitlines()) <= GUIDES[guide]


@pytest.mark.parametrize(("guide", "path"), paths())
def test_every_file_that_it_names_exists(guide: str, path: str) -> None:
    folders = [ROOT, ROOT / "benchmarks", ROOT / "presave", ROOT / "etl" / "comparison"]
    assert any((folder / path).exists() for folder in folders)


@pytest.mark.parametrize(("guide", "name"), names())
def test_every_name_of_the_code_that_it_mentions_exists(guide: str, name: str) -> None:
    assert re.search(rf"\b{name}\b", CODE)


@pytest.mark.parametrize("guide", GUIDES)
def test_every_method_that_it_mentions_exists(guide: str) -> None:
    for owner, method in re.findall(r"`([A-Z][a-z]\w*)\.(\w+)`", TEXTS[guide]):
        assert re.search(rf"^class {owner}\b.*?^    def {method}\(", CODE, re.DOTALL | re.MULTILINE), (owner, method)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([\w-]+)", "".join(TEXTS.values())))))
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
