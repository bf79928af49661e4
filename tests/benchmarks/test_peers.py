"""Loaders of other projects are strategies of a comparison, and all of them are in the table."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import io
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

import etl
from benchmarks.measuring.statistics import MIN_ROUNDS
from benchmarks.peers import environments
from benchmarks.peers.environments import REQUIREMENTS, NotInstalled, find_versions, make_environment
from benchmarks.peers.loader import (
    PIXEL_MEAN,
    PIXEL_SCALE,
    SIZE,
    ReusedBatches,
    SharedBatches,
    decode,
    list_photographs,
    normalise,
)
from benchmarks.peers.peer_results import collect, find_latest, tuned_name
from benchmarks.peers.peer_table import show
from benchmarks.peers.rows import OURS, PEERS, PRESAVED, RAW, ROWS, TASKS, Row
from etl.comparison.show.report import Report
from tests import comparison_reports

BATCH_SIZE, PREFETCH_FACTOR = 8, 2
# This project's row and another one.
PAIR = [ROWS[0], next(row for row in ROWS if row.name == "SPDL, simplejpeg")]
MODULE = "benchmarks.peers.__main__"
# Peers whose libraries the tests have.
HERE = ("torch_dataloader", "numpy_memmap", "hdf5")
# Where the fixture `compared` has saved its raw rounds.
SAVED: list[Path] = []
PEER_FILES = Path(environments.__file__).parent


@pytest.fixture
def peers(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the command's module, which finds the photographs of the tests and works in a folder of its own."""
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "find_photographs", lambda count: photographs)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "peers")
    return module


def run(peers: Any, *more: str) -> int:
    """Run the command for one round in this interpreter."""
    code: int = peers.main(["--rounds", "1", "--photographs", "40", "--batch-size", str(BATCH_SIZE), *more])
    return code


@pytest.fixture(scope="module")
def compared(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the reports and the output of a comparison of all loaders that can run here.

    There are two more: one cannot be installed, and the other is in no module.
    """
    for library in ("cv2", "simplejpeg"):
        pytest.importorskip(library, reason="the fast extra is not installed")
    folder, output = tmp_path_factory.mktemp("peers"), io.StringIO()

    def refuse(peer: str, folder: Path) -> str:
        raise NotInstalled(f"no wheel of {peer}")

    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module(MODULE)
        patch.setattr(module, "find_photographs", lambda count: photographs)
        patch.setattr(module, "FOLDER", folder)
        patch.setattr(module, "wide_console", lambda: Console(file=output, width=300))
        patch.setattr(module, "make_environment", refuse)
        rows = [row for row in ROWS if row.peer in ("fair_etl", *HERE)]
        patch.setattr(module, "ROWS", (*rows, Row("no wheel", RAW, "dali", "Load"), Row("no class", RAW, "spdl", "No")))
        pythons = [
            option for peer in ("fair_etl", "spdl", *HERE) for option in ("--python", f"{peer}={sys.executable}")
        ]
        saved = ["--json", str(folder / "reports.json"), "--save", str(folder / "results")]
        code = run(module, *pythons, *saved)
    SAVED.append(folder / "results")
    return code, json.loads((folder / "reports.json").read_text()), output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_loaders_do_the_work_of_ours_and_obey_every_rule(task: str, compared: tuple[int, dict[str, Any], str]) -> None:
    code, reports, _ = compared
    assert code == 0
    ours, *others = reports[task]["strategies"]
    assert ours["name"] == OURS
    assert [each["name"] for each in others] == [row.name for row in ROWS if row.task == task and row.peer in HERE]
    for each in (ours, *others):
        assert each["disqualified"] == []
        assert each["is_foreign"]
        assert [found["etl_alone_seconds"] is not None for found in each["rounds"]] == [True]
        assert (each["presaving"] is not None) == (task == PRESAVED)
    assert {each["sameness"]["level"] for each in others} == {"close"}
    if task == PRESAVED:  # the same pixels, normalised by a table
        assert max(each["sameness"]["largest_distance"] for each in others) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_saved_file_has_the_raw_rounds_of_every_loader(task: str, compared: tuple[int, dict[str, Any], str]) -> None:
    results = find_latest(task, SAVED[0])
    assert results is not None
    reported = compared[1][task]["strategies"]
    assert [row.name for row in results.rows] == [each["name"] for each in reported]
    for row, each in zip(results.rows, reported, strict=True):
        assert [one.etl_alone_seconds for one in row.rounds] == [one["etl_alone_seconds"] for one in each["rounds"]]
        assert (row.prepare_seconds, row.disk_nbytes) == (
            (None, None)
            if each["presaving"] is None
            else (each["presaving"]["write_seconds"], each["presaving"]["nbytes"])
        )
    assert results.versions["torch_dataloader"]["torch"] == torch.__version__
    assert set(results.missing) == ({"no wheel", "no class"} if task == RAW else set())
    assert "/" not in results.command
    assert f"--python fair_etl={Path(sys.executable).name}" in results.command


@pytest.mark.slow
def test_every_loader_has_a_row_in_the_table_of_its_task(compared: tuple[int, dict[str, Any], str]) -> None:
    _, reports, output = compared
    for report in reports.values():
        for each in report["strategies"]:
            assert f"│ {each['name']} " in output
    assert "reference" in output
    assert "close (" in output


@pytest.mark.slow
def test_peers_that_cannot_be_installed_or_imported_are_in_the_table_with_the_reason(
    compared: tuple[int, dict[str, Any], str],
) -> None:
    lines = compared[2].splitlines()
    (refused,) = [line for line in lines if line.startswith("│ no wheel ")]
    assert "n/a" in refused
    assert "no wheel of dali" in refused
    (failed,) = [line for line in lines if line.startswith("│ no class ")]
    assert "failed, see below" in failed
    assert any(line.startswith("no class failed: ") and "benchmarks.peers.spdl:No: " in line for line in lines)


def test_after_an_interruption_complete_rounds_are_shown_and_no_other_task_begins(
    peers: Any, report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def interrupted(settings: Any, progress: Any) -> Report:
        begun.append(settings)
        return dataclasses.replace(report, stopped_early=True)

    monkeypatch.setattr(peers, "run_comparison", interrupted)
    assert run(peers, "--python", sys.executable) == 130
    assert len(begun) == 1
    assert f"│ {OURS} " in capsys.readouterr().out


def test_an_interruption_before_the_first_round_shows_nothing(
    peers: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(settings: Any, progress: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(peers, "run_comparison", interrupted)
    assert run(peers, "--python", sys.executable) == 130
    assert capsys.readouterr().out == ""


def test_each_photograph_has_a_label_of_its_own(peers: Any, photographs: Path, tmp_path: Path) -> None:
    folder = peers.make_inputs(photographs, tmp_path / "inputs")
    files, labels = list_photographs(str(folder))
    assert labels.tolist() == list(range(40))
    assert labels.dtype == np.int64
    assert [each.read_bytes() for each in files] == [
        (photographs / each).read_bytes() for each in etl.ImageFolder(photographs).files
    ]


@pytest.fixture
def report() -> Report:
    """Return a report of this project's loader and another one."""
    made = comparison_reports.photographs()
    names = (OURS, "SPDL, simplejpeg")
    return dataclasses.replace(
        made,
        strategies=[dataclasses.replace(each, name=name) for name, each in zip(names, made.strategies, strict=False)],
    )


def with_seconds(report: Report, ours: list[float], theirs: list[float]) -> Report:
    """Return `report` with these seconds of loading alone, one for each round."""
    strategies = [
        dataclasses.replace(
            each,
            rounds=[
                dataclasses.replace(each.rounds[0], round=number, etl_alone_seconds=one)
                for number, one in enumerate(seconds)
            ],
        )
        for each, seconds in zip(report.strategies, (ours, theirs), strict=True)
    ]
    return dataclasses.replace(report, strategies=strategies)


def test_ratios_of_images_a_second_are_taken_within_a_round(report: Report) -> None:
    results = collect(with_seconds(report, [1.0, 10.0, 1.0], [2.0, 20.0, 2.0]), PAIR, {}, None)
    ratio = results.ratio(results.rows[1])
    assert ratio is not None
    assert (ratio.estimate, ratio.count) == (0.5, 3)


@pytest.mark.parametrize(("rounds", "shown"), [(5, "none: 5 of 6 rounds"), (6, "0.48 to 0.58")])
def test_the_table_says_what_an_interval_lacks(rounds: int, shown: str, report: Report) -> None:
    theirs = [4 / 3, *[2.0] * (rounds - 1)]
    printed = io.StringIO()
    results = collect(with_seconds(report, [1.0] * rounds, theirs), PAIR, {}, None)
    show(results, [], Console(file=printed, width=250))
    (row,) = [line for line in printed.getvalue().splitlines() if "SPDL" in line]
    assert shown in row


def test_loading_alone_is_measured_in_every_round_and_as_many_are_measured_as_an_interval_needs(peers: Any) -> None:
    options = peers.parse([])
    assert options.rounds == MIN_ROUNDS
    rows = ROWS[:1]
    settings = peers.settings_of(rows, {OURS: sys.executable}, Path("photographs"), options)
    assert (settings.rounds, settings.etl_alone_rounds) == (MIN_ROUNDS, MIN_ROUNDS)


def test_every_loader_is_tuned_for_the_time_that_is_given(peers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.tuning_of(peers.parse([])) == {}
    assert peers.tuning_of(peers.parse(["--tune-budget", "2min"])) == {"tune_seconds": 120.0}
    with pytest.raises(SystemExit, match="2"):
        peers.parse(["--tune-budget", "long"])
    assert "--tune-budget must be a time" in capsys.readouterr().err


def test_a_tuned_loader_is_a_row_of_its_own_with_its_settings(report: Report) -> None:
    tuned = dataclasses.replace(report.strategies[1], name=tuned_name(PAIR[1]))
    made = dataclasses.replace(report, strategies=[*report.strategies, tuned])
    vars(made.strategies[-1])["settings"] = {"workers": 3}  # a field once comparisons can tune
    results = collect(made, PAIR, {}, 60.0)
    assert [(row.name, row.is_tuned, row.settings) for row in results.rows[1:]] == [
        (PAIR[1].name, False, {}),
        (PAIR[1].name, True, {"workers": 3}),
    ]
    printed = io.StringIO()
    show(results, [], Console(file=printed, width=250))
    (line,) = [line for line in printed.getvalue().splitlines() if "(tuned)" in line]
    assert "workers=3" in line


def test_pixels_that_are_kept_are_those_of_our_pipeline(photographs: Path) -> None:
    source = etl.ImageFolder(photographs)
    records = etl.records(source, etl.image_pipeline(size=SIZE).until("resize"))
    files, labels = list_photographs(str(photographs))
    for number in (0, len(files) - 1):
        assert (decode(files[number]) == records[number]["features"]).all()
        assert labels[number] == records[number]["label"]


def test_pixels_are_normalised_into_a_row_of_a_batch() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    batch = np.zeros((2, 3, SIZE, SIZE), np.float32)
    normalise(pixels, batch[1])
    np.testing.assert_allclose(batch[1], (pixels.transpose(2, 0, 1) - PIXEL_MEAN) * PIXEL_SCALE, atol=1e-6)
    assert not batch[0].any()


def test_a_batch_is_used_again_only_once_it_was_given_back() -> None:
    batches = ReusedBatches(4)
    first, second = batches.take(4), batches.take(3)
    assert [len(first), len(second)] == [4, 3]
    assert not np.shares_memory(first, second)
    batches.give_back(second)
    assert np.shares_memory(batches.take(4), second)
    assert not np.shares_memory(batches.take(4), second)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_do_not_write_into_the_batch_that_is_in_use(in_order: bool) -> None:
    workers, count = 2, 24
    begun = torch.multiprocessing.get_context("fork").Value("q", 0)

    class Numbered(torch.utils.data.Dataset[Any]):
        batches = SharedBatches(workers, 1, PREFETCH_FACTOR)

        def __getitem__(self, number: int) -> Any:
            batch = self.batches.take(1)
            batch.fill_(number)
            with begun.get_lock():
                begun.value += 1
            return batch

    loader = DataLoader(
        Numbered(),
        batch_size=None,
        sampler=range(count),
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR,
        multiprocessing_context="fork",
        in_order=in_order,
    )
    seen = []
    for number, batch in enumerate(loader):
        first = int(batch[0, 0, 0, 0])
        # The workers have then written all that they were asked for while this batch is in use.
        ahead = min(count, number + 1 + PREFETCH_FACTOR * workers)
        ends = time.monotonic() + 60
        while begun.value < ahead and time.monotonic() < ends:
            time.sleep(0.001)
        assert begun.value == ahead
        assert (batch == first).all()
        seen.append(first)
    assert (seen if in_order else sorted(seen)) == list(range(count))


def test_every_row_has_a_loader_and_what_is_kept_is_prepared() -> None:
    for row in ROWS:
        source = (PEER_FILES / f"{row.peer}.py").read_text()
        assert re.search(rf"^(def|class) {row.loader}\b", source, re.MULTILINE), row
        assert "prepare" in source or row.task == RAW, row
    assert len({(row.task, row.name) for row in ROWS}) == len(ROWS)


def declared_settings(tree: ast.Module, loader: str) -> dict[str, tuple[Any, ...]]:
    """Return what `loader.settings = ...` declares in a file, without running it: its library may not be installed."""
    named = {
        target.id: each.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    (value,) = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if ast.unparse(target) == f"{loader}.settings"
    ]
    found: dict[str, tuple[Any, ...]] = ast.literal_eval(named[value.id] if isinstance(value, ast.Name) else value)
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.task} {row.name}")
def test_every_loader_declares_settings_whose_defaults_are_among_the_values(row: Row) -> None:
    tree = ast.parse((PEER_FILES / f"{row.peer}.py").read_text())
    made = next(each for each in tree.body if getattr(each, "name", None) == row.loader)
    if isinstance(made, ast.ClassDef):
        made = next(each for each in made.body if getattr(each, "name", None) == "__init__")
    assert isinstance(made, ast.FunctionDef)
    parameters, defaults = made.args.args, made.args.defaults
    by_name = {
        each.arg: ast.literal_eval(value)
        for each, value in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    }
    settings = declared_settings(tree, row.loader)
    assert "workers" in settings
    assert {name for name in settings if name != "workers"} == set(by_name)
    for name, value in by_name.items():
        assert value in settings[name]
    for values in settings.values():
        assert isinstance(values, tuple)
        assert len(set(values)) == len(values) > 1


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer != "fair_etl"])
def test_every_peer_links_to_advice_of_its_authors(peer: str) -> None:
    docstring = ast.get_docstring(ast.parse((PEER_FILES / f"{peer}.py").read_text())) or ""
    assert re.search(r"[\w.-]+\.(com|org|io|co|ai)/[\w./-]+", docstring)
    assert "advise" in docstring or "says" in docstring or "gives" in docstring


def test_versions_of_an_environment_are_those_that_it_has() -> None:
    found = find_versions(sys.executable, "numpy_memmap")
    assert found["numpy"] == np.__version__
    assert {"python", "psutil", "xxhash"} <= set(found)


def test_every_peer_has_pinned_requirements() -> None:
    assert sorted(path.stem for path in REQUIREMENTS.iterdir()) == sorted(PEERS)
    for peer in PEERS:
        lines = (REQUIREMENTS / f"{peer}.txt").read_text().split()
        assert all("==" in line for line in lines)
        # What measuring and `loader.py` need.
        assert {"numpy", "pillow", "psutil", "xxhash"} <= {line.partition("==")[0] for line in lines}, peer


def test_an_environment_that_cannot_be_made_gives_the_line_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.txt").write_text(f"{tmp_path / 'no-such-package'}\n")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    with pytest.raises(NotInstalled, match=r"ERROR: .*no-such-package"):
        make_environment("broken", tmp_path / "environments")


@pytest.mark.parametrize("arguments", [["--only", "spdl,tourch"], ["--python", f"tourch={sys.executable}"]])
def test_an_unknown_peer_is_refused(arguments: list[str], peers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        peers.main(arguments)
    assert "no peer is called tourch" in capsys.readouterr().err


def test_a_file_for_the_reports_that_cannot_be_written_is_refused_at_once(
    peers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peers.main(["--json", str(tmp_path / "none" / "reports.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err.replace("\n", " ")
