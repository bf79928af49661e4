"""The comparison for a GPU: on a CPU it says that there is none, or tries its strategies there."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import etl
from benchmarks.datasets import DATA_VARIABLE
from benchmarks.studies import gpu
from tests.comparison_workloads import broken_rules


def test_a_command_and_a_module_name_the_same_loaders() -> None:
    """Measuring processes import a loader by its name, and their `__main__` is another one than that of the command."""
    assert runpy.run_path(gpu.__file__)["STRATEGIES"] == gpu.STRATEGIES


def test_without_a_device_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(etl, "compare", lambda *_, **__: pytest.fail("there is no device"))
    monkeypatch.setenv("BACKEND_PRIORITY_CPU", "100")
    assert gpu.main([]) == 2
    assert "there is no CUDA device, so nothing was measured" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_all_strategies_are_compared_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BACKEND_PRIORITY_CPU", "100")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    call = ["--photographs", "32", "--batch-size", "8", "--dtypes", "float32", "--rounds", "1", "--budget", "20s"]
    assert gpu.main([*call, "--allow-cpu", "--save"]) == 0
    written = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert written["device"] == "CPU"
    results = {each["name"]: each for each in written["reports"]["float32"]["strategies"]}
    assert list(results) == list(gpu.STRATEGIES)
    assert not any(broken_rules(each["disqualified"]) for each in results.values())
    assert results["device-finished"]["sameness"]["level"] == "identical"
    assert results["device-finished"]["presaving"]["nbytes"] > 32 * 3 * gpu.SIZE**2
    assert {each["peak_device_memory_nbytes"] for each in results.values()} == {None}
    printed = capsys.readouterr().out
    assert "device-finished" in printed
    assert "(nothing loaded)" in printed
