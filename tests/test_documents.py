"""The README and the guides work as they say, and all that they point to exists."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import etl
import presave
from etl.commands import COMMANDS
from etl.sources.randomness import FILE_SOURCES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# The guides for contributors, and the lines that each may have.
GUIDES = {"CONTRIBUTING.md": 120, "docs/architecture.md": 150}
CODE = "\n".join(
    path.read_text()
    for folder in ("presave", "etl", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if folder != "benchmarks" or path.name in ("workload.py", "cells.py")
)
# Made when they are needed.
MADE = {".venv/", ".asv/"}
# Tools, and the packages themselves.
OTHER = {"slow", "mypy", "presave", "etl"}
GUIDES_OF_USERS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.stem != "index")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *GUIDES_OF_USERS)


def test_the_readme_is_one_page_and_points_to_every_guide() -> None:
    assert len(README.splitlines()) <= 120
    for name in DOCUMENTS[1:]:
        assert f"]({name})" in README, name


def test_the_training_script_trains(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "photos").symlink_to(photographs)
    monkeypatch.chdir(tmp_path)
    with etl.runtime.ThreadPolicy(1):
        names: dict[str, object] = {}
        exec(script, names)  # noqa: S102 - the very text that users copy
    assert (tmp_path / "checkpoint.pt").is_file()
    assert names["train"].epoch == 2


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_public_name_that_it_mentions_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    groups = {"sources", "strategies"}  # of entry points
    for package in (etl, presave):
        for path in set(re.findall(rf"\b{package.__name__}\.([A-Za-z_]\w*)", text)) - groups:
            module = ROOT / package.__name__ / path
            exists = hasattr(package, path) or module.is_dir() or module.with_suffix(".py").is_file()
            assert exists, f"{package.__name__}.{path}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_that_it_links_to_exists(name: str) -> None:
    document = ROOT / name
    for link in re.findall(r"\]\((?!http)([^)]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.is_file(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, link


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_that_it_names_exists(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / name).read_text()
    commands = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
    for target in {*re.findall(r"`make ([\w-]+)", text), *re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_command_is_in_the_table_and_no_other() -> None:
    table = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^\| `etl (\w+)", table, re.MULTILINE)) == set(COMMANDS)


def test_the_sources_of_the_command_line_are_the_first_six_rows_of_loading() -> None:
    guide = (ROOT / "docs" / "comparing.md").read_text()
    assert "the first six rows of the table in [Loading](loading.md)" in " ".join(guide.split())
    table = (ROOT / "docs" / "loading.md").read_text().partition("| --- | --- |\n")[2]
    first = [re.findall(r"etl\.([A-Z]\w+)", row)[0] for row in table.splitlines()[:6]]
    assert sorted(first) == sorted(each.__name__ for each in FILE_SOURCES)


def quoted(guide: str, pattern: str) -> set[str]:
    """Return what `guide` has in backquotes and matches `pattern` as a whole."""
    found = re.findall(r"`([^`\n]+)`", (ROOT / guide).read_text())
    return {each for each in found if re.fullmatch(pattern, each)}


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_for_contributors_is_short_and_names_files_and_code_that_exist(guide: str) -> None:
    text = (ROOT / guide).read_text()
    assert len(text.splitlines()) <= GUIDES[guide]
    folders = [ROOT, ROOT / "benchmarks", ROOT / "presave", ROOT / "etl" / "comparison"]
    paths = {
        each for each in quoted(guide, r"\.?[a-z_0-9]+(/[\w.]+)*(/|\.(py|md|json|toml|txt))") if "NAME" not in each
    }
    assert paths - MADE
    assert not {each for each in paths - MADE if not any((folder / each).exists() for folder in folders)}
    names = quoted(guide, r"[A-Za-z_]{3,}") - OTHER
    assert names
    assert not names.difference(re.findall(r"\w+", CODE))
    for owner, method in re.findall(r"`([A-Z][a-z]\w*)\.(\w+)`", text):
        assert re.search(rf"^class {owner}\b.*?^    def {method}\(", CODE, re.DOTALL | re.MULTILINE), (owner, method)


def test_the_reference_of_the_site_has_every_name_at_the_top_and_no_other() -> None:
    page = (ROOT / "docs" / "api" / "index.md").read_text()
    listed = {
        f"{module}.{name}"
        for module, block in re.findall(r"currentmodule:: (\w+)(.*?)(?=currentmodule|\Z)", page, re.DOTALL)
        for name in re.findall(r"^   ([a-z]*\.?\w+)$", block, re.MULTILINE)
    }
    top = {f"etl.{name}" for name in etl.__all__ if not isinstance(getattr(etl, name), ModuleType)}
    assert top | {f"presave.{name}" for name in presave.__all__} <= listed
    for name in listed:
        package, *path = name.split(".")
        found = {"etl": etl, "presave": presave}[package]
        for each in path:
            assert each in found.__all__, name
            found = getattr(found, each)
