"""User loaders are cells like any other: named by a variable, measured by the same clock, and held to rules."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import etl
from benchmarks import end_to_end
from benchmarks.cells import (
    PROFILE_VARIABLE,
    STRATEGIES,
    STRATEGIES_VARIABLE,
    Cell,
    Profile,
    cells_to_measure,
    chosen_profile,
)
from benchmarks.datasets import DATA_VARIABLE
from benchmarks.measure import (
    CellConditions,
    CellMetrics,
    CellResults,
    CellSample,
    CellServer,
    cpus_of_cells,
    disqualify_other_amounts,
    measure_cells,
)
from benchmarks.measuring.arrays import leaves_in
from benchmarks.measuring.clock import EpochMetrics, Split
from benchmarks.user_loaders import check_functions, find_function, open_loader, prepare_loaders
from benchmarks.workload import Data, PreparedLoader, make_data, unsupported_reason
from tests.comparison_workloads import make_sample

ROOT = Path(__file__).parents[2]
LOADERS = "tests.photograph_loaders"
FUNCTIONS = {
    name: f"{LOADERS}:{function}"
    for name, function in {
        "mine": "dataloader",
        "stored": "Stored",
        "generated": "generate",
        "fewer": "without_the_last",
        "double": "in_double_precision",
        "absent": "absent",
        "unprepared": "unprepared",
    }.items()
}
MEASURED = ("mine", "stored", "generated")
PROFILE = Profile(
    "test",
    samples=20,
    image_size=64,
    rounds=1,
    seconds_per_figure=0.0,
    grid=False,
    strategies=("raw",),
    axes=("strategy",),
    functions=FUNCTIONS,
)
NOTHING = Split(0.0, 0.0)
LAYOUTS: list[Any] = [("float32", (3, 64, 64)), ("int64", ())]
EQUAL = CellMetrics(1.0, EpochMetrics(3, 20, NOTHING, NOTHING, NOTHING, NOTHING), 0.0, 0.0, 1, "a", 2.3, LAYOUTS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(tmp_path_factory.mktemp("data")))
        folder = tmp_path_factory.mktemp("files")
        made = make_data(PROFILE, folder)
        prepare_loaders(FUNCTIONS, made, folder, cpus_of_cells())
        yield made


@pytest.fixture(scope="module")
def results(data: Data) -> CellResults:
    return measure_cells(cells_to_measure(PROFILE), data, PROFILE)


def test_without_the_variable_the_parameters_are_those_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE_VARIABLE, raising=False)
    monkeypatch.delenv(STRATEGIES_VARIABLE, raising=False)
    assert dict(chosen_profile().functions) == {}
    found = discovered()
    names = ["raw", "async-raw", "presaved", "async-presaved"]
    assert found["end_to_end.Strategy.track_wall"] == [[repr(name) for name in names]]
    assert not any("Preparing" in name for name in found)
    with_mine = discovered(mine=f"{LOADERS}:dataloader")
    changed = {name for name in with_mine if with_mine[name] != found.get(name)}
    assert {name.rpartition(".")[0] for name in changed} == {"end_to_end.Strategy", "end_to_end.Preparing"}
    assert with_mine["end_to_end.Strategy.track_wall"] == [[repr(name) for name in (*names, "mine")]]
    assert found.keys() < with_mine.keys()


def test_a_misspelt_function_keeps_asv_from_discovering_any_suite(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        discovered(mine=f"{LOADERS}:dataloadr")
    said = capfd.readouterr().err
    assert f"FAIR_ETL_STRATEGIES: {LOADERS}:dataloadr: AttributeError" in said
    assert "has no attribute 'dataloadr'; give package.module:function, found from the folder" in said


def discovered(**functions: str) -> dict[str, Any]:
    """Return the parameters of asv's benchmarks by name, as another process finds them."""
    program = (
        "import json; from asv_runner.discovery import disc_benchmarks;"
        "print(json.dumps({each.name: each._params and [list(map(repr, one)) for one in each._params]"
        " for each in disc_benchmarks('benchmarks')}))"
    )
    given = ",".join(f"{name}={function}" for name, function in functions.items())
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, PROFILE_VARIABLE: "quick", STRATEGIES_VARIABLE: given},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    parameters: dict[str, Any] = json.loads(found.stdout)
    return parameters


def test_the_variable_names_loaders_that_join_the_strategies_of_every_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRATEGIES_VARIABLE, "mine=my_loaders:dataloader, other=a.b:C.d")
    monkeypatch.setenv(PROFILE_VARIABLE, "check")
    profile = chosen_profile()
    assert profile.functions == {"mine": "my_loaders:dataloader", "other": "a.b:C.d"}
    assert [cell.strategy for cell in cells_to_measure(profile)] == ["raw", "presaved", "mine", "other"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("my_loaders:dataloader", "FAIR_ETL_STRATEGIES: 'my_loaders:dataloader' is not NAME=package.module:function"),
        ("mine=my_loaders", "'mine=my_loaders' is not NAME="),
        ("=a:b", "'=a:b' is not NAME="),
        ("raw=a:b", "another strategy is called 'raw', too"),
        ("mine=a:b,mine=a:c", "another strategy is called 'mine', too"),
    ],
)
def test_a_name_that_is_none_is_refused(given: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRATEGIES_VARIABLE, given)
    with pytest.raises(ValueError, match=said):
        chosen_profile()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("photograph_loaders:dataloader", "ModuleNotFoundError: No module named 'photograph_loaders'; give package"),
        (f"{LOADERS}:NUMBER", f"FAIR_ETL_STRATEGIES: {LOADERS}:NUMBER is a int, which is not callable"),
    ],
)
def test_a_function_that_cannot_be_used_is_an_error(function: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_functions({"mine": f"{LOADERS}:dataloader", "wrong": function})


def test_a_module_is_found_from_the_folder_of_the_configuration_behind_installed_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if Path(each or ".").resolve() != ROOT])
    monkeypatch.delitem(sys.modules, "tests.photograph_loaders", raising=False)
    assert find_function(f"{LOADERS}:dataloader").__module__ == LOADERS
    assert sys.path[-1] == str(ROOT)


@pytest.mark.slow
def test_loaders_are_measured_in_every_round_like_the_strategies(results: CellResults) -> None:
    assert [cell.strategy for cell in results] == ["raw", *FUNCTIONS]
    digests = set()
    for name in MEASURED:
        samples = results[Cell(name)]
        assert not isinstance(samples, str), samples
        assert len(samples) == PROFILE.rounds
        for sample in samples:
            assert sample.epoch.samples == 20
            assert sample.epoch.batches == 1
            assert 0 < sample.epoch.stall.total + sample.epoch.compute.total <= sample.epoch.wall.total
            assert sample.etl > 0
            assert sample.layouts == EQUAL.layouts or sorted(sample.layouts) == sorted(LAYOUTS)
            digests.add(sample.digest)
    assert len(digests) > 1


@pytest.mark.slow
def test_a_loader_that_loads_another_amount_is_not_compared_and_the_reason_names_both(results: CellResults) -> None:
    assert "the iterator gave no batch" in str(results[Cell("fewer")])  # its only batch is the last
    assert "Double" in str(results[Cell("double")])  # the model does not take it
    assert "20 photographs, but no server to stream them from" in str(results[Cell("absent")])


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (dataclasses.replace(EQUAL, epoch=dataclasses.replace(EQUAL.epoch, samples=19)), "is 19 records of "),
        (dataclasses.replace(EQUAL, layouts=[("float32", (3, 32, 32)), ("int64", ())]), r"float32 \(3, 32, 32\)"),
    ],
)
def test_the_amount_is_the_number_and_the_layout_of_records(sample: CellMetrics, said: str) -> None:
    other_bytes = dataclasses.replace(EQUAL, digest="b", score=0.1, layouts=LAYOUTS[::-1])
    given: CellResults = {Cell("good"): [other_bytes], Cell("mine"): [EQUAL, sample], Cell("raw"): [EQUAL]}
    checked = disqualify_other_amounts(given)
    assert checked[Cell("good")] == [other_bytes]
    assert checked[Cell("raw")] == [EQUAL]
    with pytest.raises(AssertionError, match=f"{said}.*; raw 20 records of float32"):
        raise AssertionError(checked[Cell("mine")])


def test_a_loader_that_nothing_was_measured_beside_is_not_taken_at_its_word() -> None:
    checked = disqualify_other_amounts({Cell("mine"): [EQUAL], Cell("raw"): "failed", Cell(batch_size=1): [EQUAL]})
    assert "nothing to compare that with was measured" in str(checked[Cell("mine")])


@pytest.mark.slow
def test_what_prepares_a_loader_is_run_once_and_its_cost_is_known(data: Data, results: CellResults) -> None:
    stored = data.loaders["stored"]
    assert stored.prepare_seconds > 0
    assert stored.nbytes == sum(file.stat().st_size for file in Path(stored.folder).iterdir())
    assert stored.nbytes > 20 * 3 * 64 * 64 * 4
    for name in ("mine", "generated"):
        assert data.loaders[name] == PreparedLoader(FUNCTIONS[name], data.loaders[name].folder)
        assert list(Path(data.loaders[name].folder).iterdir()) == []
    failed = data.loaders["unprepared"]
    assert "OSError: 20 photographs, but no server" in failed.failure
    assert "the data of 'unprepared' were not prepared" in str(results[Cell("unprepared")])
    assert failed.failure.strip() in str(results[Cell("unprepared")])


@pytest.mark.slow
def test_a_loader_is_asked_for_the_batches_of_its_cell(data: Data) -> None:
    assert [len(batch["label"]) for batch in open_loader(Cell("stored", batch_size=8), data)] == [8, 8, 4]
    loader = open_loader(Cell("generated", batch_size=16), data)
    first, second = ([leaves_in(batch)[1].tolist() for batch in loader] for _ in range(2))
    assert [len(batch) for batch in first] == [16, 4]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second))


def test_beside_a_loader_of_the_user_compute_has_the_fastest_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: value for name, value in vars(make_sample()).items() if name != "runtime"}
    asked: list[int | None] = []

    def answer(_: str, request: dict[str, Any]) -> Any:
        threads = request["threads"]
        asked.append(threads)
        is_disturbed = len(asked) == 2
        wall = Split(0.0, 9.0 if is_disturbed else abs(2.1 - (threads or 0)))
        return CellSample(**(given | {"epoch": dataclasses.replace(given["epoch"], wall=wall)})).to_json()

    server = CellServer(CellConditions(Data("", 64, 10, 20, {}, {}, {}, {}), 0.0, (0, 1, 2, 3)))
    monkeypatch.setattr(server, "sample", answer)
    assert server.measure(Cell("mine")).epoch.wall.total == pytest.approx(0.1)
    server.measure(Cell("mine"))
    server.measure(Cell("async-raw"))
    assert asked == [4, 2, 1, 4, 2, 1, 2, 2, None]


def test_a_commit_without_tasks_shows_loaders_as_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsupported_reason(Cell("mine")) == ""
    monkeypatch.delattr(etl.strategies, "open_loader")
    reason = unsupported_reason(Cell("mine"))
    assert reason == "user loaders cannot be opened at this commit"
    assert not any(unsupported_reason(Cell(name)) for name in STRATEGIES)
    check_functions({"mine": "absent:loader"})  # it may need what this commit lacks
    with pytest.raises(NotImplementedError, match=reason):
        end_to_end.Strategy().setup(end_to_end.Measured(None, {}, {Cell("mine"): reason}), "mine")
