"""Files and names in the guide to the benchmarks exist, and its recipes are short."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
README = (FOLDER / "README.md").read_text()
SOURCE = "\n".join(path.read_text() for path in FOLDER.rglob("*.py"))
# The names that its reader chooses.
CHOSEN = {"workload"}


def quoted() -> list[str]:
    """Return the texts between backticks."""
    return re.findall(r"`([^`]+)`", README)


def test_every_file_that_it_names_exists_and_it_names_every_file() -> None:
    named = {each for each in quoted() if re.fullmatch(r"[a-z_/]+(\.py|\.json|/)", each)}
    for name in named:
        assert (FOLDER / name).exists() or (FOLDER.parent / name).exists(), name
    assert {path.name for path in FOLDER.glob("[!_]*.py")} <= named


def test_every_name_of_the_code_that_it_mentions_exists() -> None:
    names = {name for each in quoted() if re.fullmatch(r"[A-Za-z_]+(\.[a-z_]+)?", each) for name in each.split(".")}
    assert {"AXES", "Cell", "make_iterator", "unsupported_reason", "STRATEGIES", "ROWS"} <= names
    for name in names - CHOSEN:
        assert re.search(rf"\b{name}\b", SOURCE), name


def test_every_recipe_is_shorter_than_ten_lines() -> None:
    recipes = re.findall(r"^## To add .*?\n\n(.*?)(?=\n## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert len(recipes) == 4
    assert all(len(recipe.strip().splitlines()) < 10 for recipe in recipes)
