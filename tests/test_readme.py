"""What the README says works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import etl
import presave
from etl.commands import COMMANDS
from etl.sources.randomness import FILE_SOURCES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_training_script_trains(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "photos").symlink_to(photographs)
    monkeypatch.chdir(tmp_path)
    with etl.runtime.ThreadPolicy(1):
        names: dict[str, object] = {}
        exec(script, names)  # noqa: S102 - the very text that users copy
    assert (tmp_path / "checkpoint.pt").is_file()
    assert names["train"].epoch == 2


def test_every_public_name_that_it_mentions_exists() -> None:
    # "etl.sources" is a group of entry points.
    for package in (etl, presave):
        for path in set(re.findall(rf"\b{package.__name__}\.([A-Za-z_]\w*)", README)) - {"examples", "sources"}:
            assert path in package.__all__, f"{package.__name__}.{path}"


def test_every_command_is_in_the_table_and_no_other() -> None:
    assert set(re.findall(r"^\| `etl (\w+)", README, re.MULTILINE)) == set(COMMANDS)


def test_the_sources_of_the_command_line_are_the_first_six_rows_of_loading() -> None:
    assert "the first six rows of the table under [Loading](#loading)" in " ".join(README.split())
    table = README.partition("\n## Loading\n")[2].partition("| --- | --- |\n")[2]
    first = [re.findall(r"etl\.([A-Z]\w+)", row)[0] for row in table.splitlines()[:6]]
    assert sorted(first) == sorted(each.__name__ for each in FILE_SOURCES)


def test_every_path_that_it_links_to_exists() -> None:
    for link in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        path, _, anchor = link.partition("#")
        assert (ROOT / path).is_file(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", (ROOT / path).read_text(), re.MULTILINE)
            assert anchor in {each.lower().replace(" ", "-") for each in headings}, link


def test_every_make_target_that_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([\w-]+)", README)) - {"and"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
