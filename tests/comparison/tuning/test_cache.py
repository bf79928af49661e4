"""Results of tuning are kept for the same question only."""

from __future__ import annotations

import sys
from pathlib import Path

from etl.comparison.tuning.cache import Cache
from tests.comparison_workloads import make_workload


def test_a_result_is_that_of_the_packages_of_another_python(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for folder in (python.parent, packages / "fast-1.0.dist-info"):
        folder.mkdir(parents=True)
    python.symlink_to(sys.executable)
    workload = make_workload(tmp_path, strategies=("mine=json:loads",), pythons={"mine": str(python)})
    [mine], cache = workload.candidates(), Cache(str(tmp_path / "cache"))
    before = cache.path(workload, mine, [0, 1])
    assert before is not None
    assert cache.path(workload, mine, [0, 1]) == before
    (packages / "fast-1.0.dist-info").rename(packages / "fast-1.1.dist-info")
    assert cache.path(workload, mine, [0, 1]) != before
