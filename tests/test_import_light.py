"""What importing the packages loads, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_SECONDS = 120


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("presave", {"torch", "etl", "benchmarks", "PIL", "rich"}),
        ("etl", {"torch", "benchmarks", "skimage", "sklearn"}),
        ("etl.commands", {"torch", "benchmarks", "skimage", "sklearn"}),
    ],
)
def test_importing_a_package_loads_nothing_heavy_and_nothing_above_it(module: str, unwanted: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS
    )
    assert not unwanted & set(done.stdout.split())
