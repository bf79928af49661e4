"""asv measures a user's loader from a file beside its configuration, over real commits."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cells import ROUNDS_VARIABLE, STRATEGIES_VARIABLE
from tests import photograph_loaders
from tests.scratch import Scratch, make_scratch

pytestmark = pytest.mark.alone

STRATEGIES = ("raw", "presaved", "mine", "stored")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    made = make_scratch(tmp_path_factory.mktemp("user_loaders"))
    made.commit("As it is")
    shutil.copy(photograph_loaders.__file__, made.folder / "my_loaders.py")
    assert made.asv("machine", "--yes").returncode == 0
    return made


def run_asv(scratch: Scratch, commit: str, mine: str = "dataloader") -> subprocess.CompletedProcess[str]:
    """Measure `commit` with two user loaders."""
    named = {STRATEGIES_VARIABLE: f"mine=my_loaders:{mine},stored=my_loaders:Stored", ROUNDS_VARIABLE: "1"}
    options = ("--record-samples", "--show-stderr", "--bench", r"end_to_end\.(Strategy|Preparing)\.")
    return scratch.run("asv", "run", *options, f"{commit}^!", **named)


def read_results(scratch: Scratch, commit: str, benchmark: str) -> dict[str, Any]:
    """Return what asv recorded for each strategy."""
    (file,) = scratch.folder.glob(f".asv/results/*/{commit[:8]}-*.json")
    content = json.loads(file.read_text())
    columns = dict(zip(content["result_columns"], content["results"][f"end_to_end.{benchmark}"], strict=False))
    return dict(zip((name.strip("'") for name in columns["params"][0]), columns["result"], strict=True))


def test_loaders_of_the_user_are_in_the_history_beside_the_strategies(scratch: Scratch) -> None:
    commit = scratch.git("rev-parse", "HEAD").strip()
    run = run_asv(scratch, commit)
    assert run.returncode == 0, run.stdout
    for metric in ("wall", "etl", "compute", "stall", "peak_memory"):
        values = read_results(scratch, commit, f"Strategy.track_{metric}")
        assert tuple(values) == STRATEGIES
        assert all(value > 0 for value in values.values())
    seconds = read_results(scratch, commit, "Preparing.track_prepare_time")
    assert seconds["mine"] == 0 < seconds["stored"]
    assert read_results(scratch, commit, "Preparing.track_prepared_size")["stored"] > 48 * 3 * 64 * 64 * 4


def test_an_earlier_commit_has_its_strategies_and_says_why_not_the_loaders(scratch: Scratch) -> None:
    scratch.replace(
        "etl/strategies/__init__.py", "from etl.strategies.open_loader import find_prepare, open_loader\n", ""
    )
    earlier = scratch.commit("Without user loaders")
    run = run_asv(scratch, earlier)
    assert run.returncode == 0, run.stdout
    assert "user loaders cannot be opened at this commit" in run.stdout
    values = read_results(scratch, earlier, "Strategy.track_wall")
    assert [name for name in STRATEGIES if math.isnan(values[name])] == ["mine", "stored"]


def test_a_misspelt_function_ends_the_run_before_anything_is_measured(scratch: Scratch) -> None:
    commit = scratch.git("rev-parse", "HEAD~1").strip()
    run = run_asv(scratch, commit, mine="dataloadr")
    assert run.returncode != 0
    assert "FAIR_ETL_STRATEGIES: my_loaders:dataloadr: AttributeError" in run.stdout
    # asv discovers suites with the commit that happens to be installed: one that has no loaders leaves it to the setup.
    assert "Failed to build" in run.stdout or "setup_cache failed" in run.stdout


def test_a_loader_that_loads_less_fails_with_the_reason_and_the_others_do_not(scratch: Scratch) -> None:
    commit = scratch.git("rev-parse", "HEAD~1").strip()
    run = run_asv(scratch, commit, mine="without_the_last")
    assert run.returncode == 2, run.stdout
    said = r"is 32 records of float32 \(3, 64, 64\) and int64 \(\); (raw|presaved) 48 records of float32"
    assert re.search(said, run.stdout), run.stdout
    values = read_results(scratch, commit, "Strategy.track_wall")
    assert [name for name in STRATEGIES if values[name] is None] == ["mine"]


def test_pages_of_a_history_with_loaders_can_be_published(scratch: Scratch) -> None:
    published = scratch.asv("publish")
    assert published.returncode == 0, published.stdout
    pages = Path(scratch.folder / ".asv/html")
    assert list(pages.glob("graphs/**/end_to_end.Preparing.track_prepare_time.json"))
