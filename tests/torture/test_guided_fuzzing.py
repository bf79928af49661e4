"""Files that a fuzzer makes which sees what code they reach: read, or refused as documented, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.torture.conftest import HowMany, Tally
from tests.torture.mutated_files import INPUTS
from tests.torture.planted import MAGIC

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed")

FEW_KINDS = ("CSV", "manifest of npy")
LIMIT_SECONDS = 1200
EXECUTED = re.compile(r"stat::number_of_executed_units: *(\d+)")
COVERED = re.compile(r"DONE +cov: (\d+)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", list(INPUTS) if metafunc.config.getoption("--torture") else FEW_KINDS)


def fuzz(name: str, folder: Path, runs: int) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).with_name("guided.py")
    options = [f"-runs={runs}", "-seed=1", "-print_final_stats=1"]
    return subprocess.run(
        [sys.executable, program, name, folder, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_SECONDS,
    )


def test_inputs_that_are_led_to_new_code_are_read_or_refused_as_documented(
    name: str, tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    runs = how_many(300, 3000)
    done = fuzz(name, tmp_path, runs)
    assert done.returncode == 0, done.stdout[-8000:]
    executed, covered = EXECUTED.search(done.stdout), COVERED.search(done.stdout)
    assert executed is not None, done.stdout[-8000:]
    assert covered is not None, done.stdout[-8000:]
    assert int(executed[1]) >= runs
    tally(f"input guided by coverage, {name}", "read or refused as documented", int(executed[1]))


def test_a_fault_that_is_hidden_behind_other_code_would_be_found(tmp_path: Path) -> None:
    done = fuzz("planted", tmp_path, 200_000)
    assert done.returncode != 0
    assert "KeyError: 'planted'" in done.stdout
    [crash] = tmp_path.glob("crash-*")
    assert crash.read_bytes().startswith(MAGIC)
