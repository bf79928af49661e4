"""The lists at the end of `make test` and `make test-slow` have every skip of every pytest run, once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import Skip, describe_skips, read_skips

ROOT = Path(__file__).parents[1]
PYTEST = ("pytest", "-p", "xdist", "-p", "tests.skips")
SKIPPING = """
import pytest

@pytest.fixture
def disk():
    pytest.skip("no disk")

@pytest.mark.skipif(True, reason="no device")
@pytest.mark.parametrize("number", range(3))
def test_marked(number): ...

def test_in_a_fixture(disk): ...

@pytest.mark.slow
def test_in_the_test():
    pytest.skip("no device")

@pytest.mark.xfail
def test_that_is_expected_to_fail():
    assert False

@pytest.mark.slow
def test_that_passes(): ...
"""
WHOLE_FILE = """
import pytest
pytest.importorskip("no_such_module", reason="no module")
def test_never_seen(): ...
"""
SKIPS = {
    *(Skip(f"test_single.py::test_marked[{number}]", "no device") for number in range(3)),
    Skip("test_single.py::test_in_the_test", "no device"),
    Skip("test_single.py::test_in_a_fixture", "no disk"),
    Skip("test_whole.py", "no module"),
}
SHOWN = """Skipped:
  no device: 4 tests of test_single.py
  no disk: 1 test of test_single.py
  no module: test_whole.py (all of it)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_single.py").write_text(SKIPPING)
    (tmp_path / "test_whole.py").write_text(WHOLE_FILE)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Not the options of the pytest that runs this.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which takes a second
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_skips_of_two_runs_with_and_without_workers_are_listed_once_by_reason(folder: Path) -> None:
    for selection, workers in (("not slow", "2"), ("slow", "0")):
        ran = run(folder, *PYTEST, "--skips", "new/skips.jsonl", "-n", workers, "-m", selection)
        assert ran.returncode == 0, ran.stdout
    assert set(read_skips(folder / "new/skips.jsonl")) == SKIPS
    shown = run(folder, "tests.skips", "new/skips.jsonl")
    assert shown.returncode == 0
    assert shown.stdout == SHOWN


def test_a_run_that_skips_nothing_says_so_and_one_that_never_was_is_an_error(folder: Path) -> None:
    ran = run(folder, *PYTEST, "--skips", "skips.jsonl", "-k", "passes", "test_single.py")
    assert ran.returncode == 0, ran.stdout
    assert run(folder, "tests.skips", "skips.jsonl").stdout == "Nothing was skipped.\n"
    missing = run(folder, "tests.skips", "other.jsonl")
    assert missing.returncode == 1
    assert "no pytest ran with --skips other.jsonl" in missing.stderr


@pytest.mark.parametrize(("target", "runs"), [("test", 1), ("test-slow", 2)])
def test_make_installs_first_and_lists_the_skips_of_every_pytest_last(target: str, runs: int) -> None:
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", target],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = planned.stdout.splitlines()
    tests = [line for line in lines if " -m pytest " in line]
    (removal,) = [line for line in lines if line.startswith("rm -f ")]
    path = removal.removeprefix("rm -f ")
    assert len(tests) == runs
    assert all(f"-p tests.skips --skips {path} " in line for line in tests)
    (installing,) = [line for line in lines if line.endswith(" -m tests.system_packages")]
    assert lines.index(installing) < lines.index(removal) < lines.index(tests[0])
    assert lines[-1].endswith(f" -m tests.skips {path}")


def test_the_commonest_reason_comes_first() -> None:
    shown = describe_skips([Skip("a.py::one", "rare"), Skip("a.py::two", "common"), Skip("b.py::one", "common")])
    assert shown == "Skipped:\n  common: 2 tests of a.py, b.py\n  rare: 1 test of a.py"
