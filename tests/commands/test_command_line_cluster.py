"""`etl presave --scheduler` runs on the workers of a real Dask scheduler, or fails with one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import presave
from etl.commands import main
from tests.refusals import refusal

distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")
# joblib's own backend for Dask still has the method that joblib calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`apply_async` is deprecated:DeprecationWarning:joblib")


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not ask long for a scheduler that is not there."""
    monkeypatch.setattr("etl.commands.presave.CONNECT_SECONDS", 2)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a scheduler with two worker processes."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as cluster:
        yield cluster.scheduler_address


def test_relative_paths_reach_the_workers_and_the_store_is_that_of_threads(
    photographs: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").symlink_to(photographs)
    monkeypatch.chdir(tmp_path)
    call = ["--size", "16", "--shard-mb", "0.004"]
    assert main(["presave", "photos", "there", *call, "--scheduler", address]) == 0
    assert main(["presave", str(tmp_path / "photos"), str(tmp_path / "here"), *call]) == 0
    here, there = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("here", "there"))
    assert len(here) == 2 * 8 + 1
    assert there == here


def _samples_by_function(tree: dict[str, Any]) -> dict[str, int]:
    """Count the samples of each function, by its name, below `tree`."""
    found: dict[str, int] = {}
    for child in tree["children"].values():
        name = child["description"]["name"]
        found[name] = found.get(name, 0) + child["count"]
        for below, count in _samples_by_function(child).items():
            found[below] = found.get(below, 0) + count
    return found


def test_the_profile_shows_where_each_worker_spent_its_time(photographs: Path, tmp_path: Path, address: str) -> None:
    samples = 0
    for attempt in range(10):  # half a second of work, sampled every 10 ms: on a busy machine all samples may miss it
        store, profile = tmp_path / f"{attempt}.store", tmp_path / f"{attempt}.json"
        call = ["presave", str(photographs), str(store), "--size", "512", "--shard-mb", "2"]
        assert main([*call, "--scheduler", address, "--cluster-profile", str(profile)]) == 0
        assert presave.verify(store) == []
        workers = json.loads(profile.read_text())["workers"]
        assert len(workers) == 2
        samples += sum(_samples_by_function(tree).get("_write_elsewhere", 0) for tree in workers.values())
        if samples:
            break
    assert samples > 0


def test_a_bad_photograph_is_named_as_without_a_cluster(
    photographs: Path, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number, file in enumerate(sorted(photographs.rglob("*.jpg"))[:9]):
            (tmp_path / "photos" / name / f"{number}.jpg").write_bytes(file.read_bytes())
    (tmp_path / "photos" / "b" / "4.jpg").write_text("not an image")
    call = ["presave", str(tmp_path / "photos"), str(tmp_path / "s"), "--size", "8", "--scheduler", address]
    line = refusal(capsys, *call)
    assert "record 13 of" in line
    assert "(b/4.jpg): failed at stage 'decode'" in line
    assert not (tmp_path / "s").exists()


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scheduler", "tcp://127.0.0.1:1"], "--scheduler tcp://127.0.0.1:1: no Dask scheduler answers there"),
        (["--scheduler", "nonsense:1:2"], "--scheduler nonsense:1:2: no Dask scheduler answers there"),
        (["--cluster-profile", "profile.json"], "--cluster-profile needs --scheduler"),
        (["--scheduler", "tcp://127.0.0.1:1", "--jobs", "2"], "--jobs sets the threads on this machine"),
        (
            ["--scheduler", "tcp://127.0.0.1:1", "--cluster-profile", "nowhere/p.json"],
            "--cluster-profile nowhere/p.json: there is no folder nowhere",
        ),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(
    options: list[str],
    said: str,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capsys, "presave", str(photographs), "s", *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("short_patience")
def test_a_scheduler_without_workers_is_one_line(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"processes": True, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with distributed.LocalCluster(n_workers=0, **options) as cluster:
        call = ["presave", str(photographs), str(tmp_path / "s"), "--scheduler", cluster.scheduler_address]
        line = refusal(capsys, *call)
    assert "has no workers; start some with `dask worker tcp://127.0.0.1:" in line


def test_without_dask_one_line_says_what_to_install(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    line = refusal(capsys, "presave", str(photographs), str(tmp_path / "s"), "--scheduler", "tcp://127.0.0.1:1")
    assert "--scheduler needs Dask" in line
    assert "pip install 'fair-etl[cluster]'" in line
