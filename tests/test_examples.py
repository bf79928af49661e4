"""The examples of the site run as they stand, and the site shows each."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.comparison_workloads import broken_rules

pytestmark = pytest.mark.usefixtures("one_thread")
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def names_of(example: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{example}.py"))


def test_a_folder_of_images_is_trained_on(tmp_path: Path) -> None:
    assert math.isfinite(names_of("image_folder")["main"](str(tmp_path / "photos"), epochs=1))


def test_sequences_are_trained_on() -> None:
    assert names_of("sequences")["main"](epochs=1) < 1.0


@pytest.mark.slow
def test_several_ranks_train() -> None:
    assert math.isfinite(names_of("several_ranks")["main"]())


@pytest.mark.slow
def test_a_dataloader_is_compared_with_a_step_of_its_own() -> None:
    report = names_of("own_dataloader")["main"](budget="5s")
    assert [each.name for each in report.strategies] == ["raw", "async-raw", "dataloader"]
    assert not any(broken_rules(each.disqualified) for each in report.strategies)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - as a notebook does
    assert names["report"].strategies


def test_every_example_is_in_the_table_of_contents() -> None:
    contents = (EXAMPLES / "index.md").read_text()
    shown = {path.stem.replace("_", "-") for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb"))}
    assert len(shown) == 5
    assert all(f"\n{name}\n" in contents for name in shown)
