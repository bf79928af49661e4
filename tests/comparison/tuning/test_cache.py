"""Results of tuning are kept for the same question only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import presave
from etl.comparison.tuning.cache import Cache
from tests.comparison_workloads import make_workload


def test_a_result_is_that_of_the_code_below_a_decorator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decorators.py").write_text(
        "import functools\ndef timed(f):\n    return functools.wraps(f)(lambda *a, **k: f(*a, **k))\n"
    )
    code = tmp_path / "decorated.py"
    code.write_text("import decorators\n@decorators.timed\ndef load(batch_size):\n    yield\n")
    monkeypatch.syspath_prepend(tmp_path)
    workload = make_workload(tmp_path, strategies=("mine=decorated:load",))
    [mine], cache = workload.candidates(), Cache(str(tmp_path / "cache"))
    before = cache.path(workload, mine, [0, 1])
    code.write_text(f"{code.read_text()}# changed\n")
    assert cache.path(workload, mine, [0, 1]) not in (before, None)


def test_a_result_is_that_of_the_formats_whose_packages_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, cache = make_workload(tmp_path), Cache(str(tmp_path / "cache"))
    raw = workload.candidates()[0]
    before = cache.path(workload, raw, [0, 1])
    monkeypatch.setattr(presave, "formats", lambda: ["npy"])
    assert cache.path(workload, raw, [0, 1]) not in (before, None)


def test_a_result_is_that_of_files_that_were_not_written_since(tmp_path: Path) -> None:
    workload, cache = make_workload(tmp_path), Cache(str(tmp_path / "cache"))
    raw = workload.candidates()[0]
    before = cache.path(workload, raw, [0, 1])
    (tmp_path / "link").hardlink_to(tmp_path / "table.csv")  # as a comparison does it
    assert cache.path(workload, raw, [0, 1]) == before
    os.utime(tmp_path / "table.csv", ns=(0, 0))
    assert cache.path(workload, raw, [0, 1]) != before


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
