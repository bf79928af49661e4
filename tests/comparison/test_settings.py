"""Settings name what is wrong and the choices; candidates are complete and have distinct names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import presave
from etl.arguments import parse_seconds
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.settings import Settings
from etl.comparison.run.workload import Workload
from etl.strategies import default_names, names
from tests.comparison_workloads import make_workload

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"strategies": ("raw", "turbo")}, "--strategies: no strategy is called 'turbo'; there are raw, async-raw"),
    ({"strategies": ("raw", "again=turbo")}, "--strategies: no strategy is called 'turbo'; there are raw, async-raw"),
    ({"strategies": ("raw", "=raw")}, "--strategies: '=raw' has no name before the =; give one, such as again=raw"),
    ({"strategies": ("raw", "raw=presaved")}, "--strategies: raw, raw=presaved has the same name twice"),
    ({"strategies": ()}, "--strategies needs at least one of raw"),
    ({"strategies": ("raw", "raw")}, "--strategies: raw, raw has the same name twice"),
    ({"formats": ("zip",)}, "--formats: unknown 'zip'; known: npy"),
    ({"decoder": "gpu"}, "--decoder: unknown 'gpu'; known: pillow"),
    ({"cache": "hot"}, "--cache: unknown 'hot'; known: warm, cold"),
    ({"backend": "tpu"}, "--backend: unknown 'tpu'; known: auto, cpu, cuda"),
    ({"dtype": "int3"}, "int3"),
    ({"batch_size": 0}, "--batch-size must be a whole number of at least 1, not 0"),
    ({"threads": 0}, "--cpus must be a whole number of at least 1, not 0"),
    ({"rounds": 0}, "--rounds must be"),
    ({"records": -1}, "--records must be"),
    ({"size": 1.5}, "--size must be"),
    ({"prefetch_size": -1}, "--prefetch-size must be a whole number of at least 0"),
    ({"memory_nbytes": 0}, "--memory must be a whole number of at least 1, not 0"),
    ({"budget_seconds": 0.0}, "--budget must be a time above 0"),
    ({"budget_seconds": float("inf")}, "--budget must be"),
    ({"budget_seconds": float("nan")}, "--budget must be"),
    ({"compute": "gpu"}, "--compute must be training, inference, simulated:20ms or simulated:20ms,sync, not 'gpu'"),
    (
        {"compute": "simulated"},
        "--compute must be training, inference, simulated:20ms or simulated:20ms,sync, not 'simulated'",
    ),
    ({"compute": "simulated:soon"}, "--compute simulated must be a time such as 60s, 20ms or 2min, not 'soon'"),
    ({"compute": "simulated:-5ms"}, "--compute simulated must be a time"),
    ({"epoch_batches": 0}, "--epoch-batches must be a whole number of at least 1, not 0"),
    (
        {"step": "train:make_step", "model": "mlp"},
        "--step replaces the model and its compute, so --model and --compute",
    ),
    ({"step": "train:make_step", "compute": "simulated:5ms"}, "--step replaces the model and its compute"),
    (
        {"compute": "simulated:5ms", "model": "mlp"},
        "--compute simulated:5ms runs no model, so --model and --backend have no effect with it",
    ),
    ({"compute": "simulated:5ms", "backend": "cpu"}, "--compute simulated:5ms runs no model"),
    ({"pythons": {"mine": "python3.11"}}, "--python mine=...: no strategy is called mine"),
    ({"pythons": {"raw": "python3.11"}}, "--python raw=...: only your own loader runs in another Python"),
    (
        {"strategies": ("mine=loaders:load",), "pythons": {"load": "python3.11"}},
        "--python load=...: no strategy is called load",
    ),
    ({"strategies": ("raw", "mine=not a:function")}, "--strategies: no strategy is called 'not a:function'"),
    (
        {"strategies": ("raw", "mine=pickled:1/load.pickle"), "pythons": {"mine": "python3"}},
        "--python mine=...: functions cannot be carried to another Python; name the loader",
    ),
    (
        {"strategies": ("raw", "mine=a:load"), "pythons": {"mine": "python3"}, "step": "pickled:1/make_step.pickle"},
        "--python mine=...: functions cannot be carried to another Python; name the loader",
    ),
    ({"strategies": ("one:load", "other:load")}, "--strategies: one:load, other:load has the same name twice"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda each: str(each))
def test_a_wrong_setting_is_named_with_what_there_is(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Settings("photographs", **settings)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("source", "name"), [("my_data:dataset", None), ("lmdb://photos.lmdb", None), ("pickled:1/data.pickle", "Numbers")]
)
def test_a_source_whose_files_are_unknown_cannot_be_read_cold(source: str, name: str | None) -> None:
    message = f"^--cache cold: which files {re.escape(name or source)} reads is unknown, so they cannot be dropped"
    with pytest.raises(ValueError, match=message):
        Settings(source, cache="cold", source_name=name)
    assert Settings(source, source_name=name).has_unknown_files
    assert not Settings("photographs", cache="cold").has_unknown_files


def test_every_strategy_and_format_there_is_may_be_asked_for() -> None:
    Settings("photographs", strategies=names(), formats=tuple(presave.formats()))
    assert Settings("photographs").strategies == default_names()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("20ms", 0.02), ("1.5min", 90), ("2m", 120), ("60", 60), (" 250us ", 250e-6), ("0.5s", 0.5)],
)
def test_a_time_is_a_number_with_a_unit_and_without_one_of_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--budget") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1e3s", "1 h", "20 milliseconds", "1.s", "inf"])
def test_what_is_no_time_is_refused_with_the_option_it_was_given_to(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--budget must be a time such as 60s"):
        parse_seconds(text, "--budget")


def test_simulated_compute_is_in_seconds_and_real_compute_has_none() -> None:
    assert Settings("photographs", compute="simulated:20ms").simulated_seconds == pytest.approx(0.02)
    assert Settings("photographs").simulated_seconds is None
    assert Settings("photographs", compute="inference", model="mlp").simulated_seconds is None


def test_settings_come_back_from_json_as_they_were() -> None:
    settings = Settings(
        "table.csv",
        strategies=("raw", "presaved", "mine=loaders:load"),
        formats=("npy", "hdf5"),
        batch_size=7,
        table_options={"label": "kind", "features": ["a", "b"]},
        unchecked=("noise",),
        memory_nbytes=10**9,
        pipeline="data:pipeline",
        step="train:make_step",
        pythons={"mine": "python3.11"},
        search=("site",),
        epoch_batches=3,
        check_epoch=True,
    )
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    "candidate", [Candidate("presaved", "hdf5", "resize"), Candidate("loaders:load", label="mine")]
)
def test_a_candidate_comes_back_from_json_as_it_was(candidate: Candidate) -> None:
    assert Candidate.from_json(json.loads(json.dumps(candidate.to_json()))) == candidate


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("raw", "raw"),
        ("again=raw", "again"),
        ("my_project.loaders:dataloader", "dataloader"),
        ("my_project.loaders:Loader.of_images", "of_images"),
        ("mine=my_project.loaders:dataloader", "mine"),
        ("mine=pickled:/job=12/1/load.pickle", "mine"),
    ],
)
def test_a_function_is_called_by_its_name_unless_it_has_a_label(given: str, label: str) -> None:
    assert Candidate.parse(given).name == label


def test_a_function_is_a_loader_of_the_user_of_which_nothing_is_known() -> None:
    mine, raw = Candidate.parse("my_loaders:dataloader"), Candidate.parse("raw")
    assert (mine.is_foreign, mine.is_ahead, mine.is_presaved, mine.worker_processes) == (True, False, False, False)
    assert mine.kind.function == "my_loaders:dataloader"
    assert raw.is_foreign is False


def test_a_report_may_call_the_source_by_another_name() -> None:
    assert Settings("pickled:1.pickle", source_name="MyDataset").title == "MyDataset"
    assert Settings("photographs").title == "photographs"


def test_a_loop_waits_for_its_steps_if_it_is_asked_to_in_either_way() -> None:
    assert Settings("photographs").waits_for_steps is False
    assert Settings("photographs", sync_every_step=True).waits_for_steps is True
    assert Settings("photographs", compute="simulated:5ms").waits_for_steps is False
    assert Settings("photographs", compute="simulated:5ms,sync").waits_for_steps is True


def test_a_strategy_with_a_store_is_compared_in_every_format_and_named_by_it(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, strategies=("raw", "presaved"), formats=("npy", "hdf5"))
    names = [workload.name(each) for each in workload.candidates()]
    assert names == ["raw", "presaved:npy", "presaved:hdf5"]


def test_stages_are_cut_for_the_last_strategy_with_a_store_and_for_none_without(photographs: Path) -> None:
    workload = Workload(Settings(str(photographs), size=32, stages=True), photographs, 2)
    cuts = workload.stage_candidates()
    assert {each.strategy for each in cuts} == {"async-presaved"}
    assert [each.stage for each in cuts] == ["read", "decode", "resize", "channels_first", "normalise"]
    names = [workload.name(each) for each in cuts]
    assert names[2] == "async-presaved"
    assert names[1] == "async-presaved@decode"
    for other in (Settings(str(photographs), strategies=("raw",), stages=True), Settings(str(photographs), size=32)):
        assert Workload(other, photographs, 2).stage_candidates() == []


def test_a_stage_that_the_pipeline_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--until decode: the pipeline has read"):
        make_workload(tmp_path, until="decode")


def test_plain_computes_with_as_many_threads_as_were_seen_to_be_fastest(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, cpus=4)
    workload.plain_compute_threads = 2
    assert workload.threads(Candidate("presaved", "npy", "read")) == CpuSplit(2, 0)
