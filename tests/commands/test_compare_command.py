"""`etl compare` from beginning to end: real processes on photographs, digits, tables and sequences."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image

import etl
import presave
from etl.commands import main
from etl.comparison.compare import run_comparison
from etl.comparison.judge.rules import RULES
from etl.comparison.request.settings import Settings
from etl.comparison.run.comparison_progress import ComparisonProgress
from etl.measuring.instruments import current_instruments
from etl.measuring.page_cache import drop_from_page_cache
from tests.comparison.test_measuring_processes import servers
from tests.refusals import refusal
from tests.report_schema import SCHEMA, make_schema
from tests.user_modules import user_module

# The fewest records and rounds that give a report.
QUICK = "--rounds=1", "--records=24", "--batch-size=4", "--size=32", "--cpus=1", "--budget=2s"
# Rules that hold in them.
HELD = "samples", "compute", "resources", "cache", "cost", "loaded"


@pytest.fixture(scope="module")
def compared(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of all strategies and two formats on photographs, with paths of the page and the trace."""
    folder = tmp_path_factory.mktemp("compare")
    strategies = "raw,async-raw,process-raw,presaved,async-presaved"
    files = ("--stages", "--json", f"{folder}/r.json", "--html", f"{folder}/r.html", "--trace", f"{folder}/r.trace")
    assert (
        main(["compare", str(photographs), *QUICK, "--strategies", strategies, "--formats", "npy,pickle", *files]) == 0
    )
    report: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return {**report, "page": folder / "r.html", "trace": folder / "r.trace"}


def compare(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The report of a comparison that must succeed."""
    file = tmp_path / "report.json"
    assert main(["compare", *arguments, "--json", str(file)]) == 0
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def result(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in report["strategies"] if each["name"] == name)
    return found


def test_the_schema_is_that_of_the_classes() -> None:
    assert json.loads(SCHEMA.read_text()) == make_schema(), "run python -m tests.report_schema"


def test_a_report_is_valid_by_its_schema(compared: dict[str, Any]) -> None:
    report = {name: value for name, value in compared.items() if name not in ("page", "trace")}
    jsonschema.Draft202012Validator(make_schema()).validate(report)


def test_every_strategy_and_format_is_measured(compared: dict[str, Any]) -> None:
    names = [each["name"] for each in compared["strategies"]]
    stores = [f"{strategy}:{kind}" for strategy in ("presaved", "async-presaved") for kind in ("npy", "pickle")]
    assert names == ["raw", "async-raw", "process-raw", *stores]


def test_all_rules_but_the_number_of_rounds_hold(compared: dict[str, Any]) -> None:
    held = {check["rule"]: check["held"] for check in compared["checks"]}
    # These few, small batches take too little time to judge the share of the harness.
    assert held.keys() == RULES.keys()
    assert {rule: held[rule] for rule in HELD} == dict.fromkeys(HELD, True)
    assert held["noise"] is False


def test_the_report_has_the_bytes_of_a_store_after_every_stage(compared: dict[str, Any]) -> None:
    stages = [stage["stage"] for stage in compared["stages"]]
    assert stages == ["raw", "read", "decode", "resize", "channels_first", "normalise"]
    nbytes = {stage["stage"]: stage["nbytes"] for stage in compared["stages"]}
    assert nbytes["raw"] == 0
    assert nbytes["normalise"] > 3.9 * nbytes["resize"] > nbytes["resize"]


def test_the_report_names_its_instruments(compared: dict[str, Any]) -> None:
    assert compared["versions"]["instruments"] == current_instruments().digest[:12]


def test_a_subset_is_scaled_to_the_whole_source(compared: dict[str, Any]) -> None:
    assert (compared["measured_records"], compared["source_records"]) == (24, 40)
    raw = result(compared, "raw")
    assert raw["samples_per_second"] * raw["parts"]["wall_seconds"] == pytest.approx(40)
    assert raw["parts"]["wall_seconds"] > raw["rounds"][0]["wall_seconds"]


def test_every_strategy_is_predicted_from_the_profile(compared: dict[str, Any]) -> None:
    stages = [stage["name"] for stage in compared["profile"]["stages"]]
    assert stages == ["read", "decode", "resize", "channels_first", "normalise"]


def test_the_timeline_shows_loading_beside_compute(compared: dict[str, Any]) -> None:
    lines = {line["strategy"]: line for line in compared["timelines"]}
    # Plain: each batch is loaded in a wait, none beside compute. Ahead: some are loaded beside compute.
    raw, ahead = lines["raw"], lines["async-raw"]
    assert all(any(start <= load[1] and load[2] <= end for start, end in raw["waits"]) for load in raw["loads"])
    beside = [
        [load for load in line["loads"] if any(start < load[2] and load[1] < end for start, end in line["computes"])]
        for line in (raw, ahead)
    ]
    assert beside[0] == []
    assert beside[1] != []
    assert lines["process-raw"]["loads"] == []


def test_the_page_and_the_trace_are_written(compared: dict[str, Any]) -> None:
    assert "async-presaved" in compared["page"].read_text()
    assert json.loads(compared["trace"].read_text())["traceEvents"]


@pytest.mark.slow
def test_a_table_is_trained_with_a_perceptron(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{number},{number % 7},{'yes' if number % 2 else 'no'}" for number in range(64)]
    table.write_text("\n".join(["a,b,kind", *rows]) + "\n")
    quick = ("--rounds", "1", "--budget", "2s", "--batch-size", "8", "--cpus", "1")
    report = compare(tmp_path, str(table), "--label", "kind", *quick)
    assert report["settings"]["model"] == "mlp"
    assert result(report, "presaved")["stage"] == "read"


@pytest.mark.slow
def test_sequences_are_padded_alike_by_all_strategies(tmp_path: Path) -> None:
    folder = tmp_path / "sequences"
    for kind in ("a", "b"):
        (folder / kind).mkdir(parents=True)
        for number in range(12):
            steps = [f"{step},{number}" for step in range(3 + number)]
            (folder / kind / f"{number}.csv").write_text("\n".join(["x,y", *steps]) + "\n")
    report = compare(tmp_path, str(folder), "--rounds", "1", "--budget", "2s", "--batch-size", "4", "--cpus", "1")
    assert report["settings"]["model"] == "lstm"
    assert [
        each["disqualified"] for each in report["strategies"] if any("samples" in text for text in each["disqualified"])
    ] == []


LOADERS = """
    import numpy as np
    from pathlib import Path

    import etl

    def tiny(shape, classes):
        import torch
        size = shape[0] * shape[1] * shape[2]
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, classes))

    def same(source, pipeline, batch_size, seed, dtype):
        return etl.RawIterator(source, pipeline, batch_size, shuffle=True, seed=seed, dtype=dtype)

    class Prepared:
        def __init__(self, path, folder, batch_size, dtype):
            self.path, self.file, self.batch_size, self.dtype = path, Path(folder) / "images.npz", batch_size, dtype
            self.epoch = 0

        def prepare(self):
            photographs = etl.ImageFolder(self.path, follow_links=True)
            records = list(etl.records(photographs, etl.image_pipeline(size=32)))
            images = np.stack([each["features"] for each in records]).astype(self.dtype)
            np.savez(self.file, images=images, labels=np.array([each["label"] for each in records]))

        def __iter__(self):
            with np.load(self.file) as arrays:
                images, labels = arrays["images"], arrays["labels"]
            order = np.random.default_rng(self.epoch).permutation(len(images))
            self.epoch += 1
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                yield images[chosen], labels[chosen]
"""


@pytest.mark.slow
def test_loaders_of_the_user_are_compared_on_the_same_records_with_the_same_model_of_the_user(
    photographs: Path, tmp_path: Path
) -> None:
    with user_module(tmp_path, "my_loaders", LOADERS):
        loaders = "raw,same=my_loaders:same,mine=my_loaders:Prepared"
        report = compare(tmp_path, str(photographs), *QUICK, "--strategies", loaders, "--model", "my_loaders:tiny")
    assert report["settings"]["model"] == "my_loaders:tiny"
    jsonschema.Draft202012Validator(make_schema()).validate(report)
    assert not any("failed" in note for note in report["notes"]), report["notes"]
    checks = {check["rule"]: check for check in report["checks"]}
    for rule in HELD:
        assert checks[rule]["held"] is True, checks[rule]
    assert checks["samples"]["evidence"].endswith("; same identical, mine same records")
    raw, same, mine = (result(report, name) for name in ("raw", "same", "mine"))
    assert [each["is_foreign"] for each in (raw, same, mine)] == [False, True, True]
    assert (raw["sameness"], same["sameness"]["level"], mine["sameness"]["level"]) == (
        None,
        "identical",
        "same records",
    )
    assert same["sameness"]["is_shuffled"] is mine["sameness"]["is_shuffled"] is True
    assert [each["measured_records"] for each in (raw, same, mine)] == [24] * 3
    assert (raw["presaving"], same["presaving"]) == (None, None)
    # Scaled to all 40 records; half of them would be less than their float32 pixels.
    assert mine["presaving"]["nbytes"] > 40 * 3 * 32 * 32 * 4
    assert mine["presaving"]["write_seconds"] > 0


@pytest.mark.slow
def test_inference_runs_the_model_forward_and_compares_its_outputs(photographs: Path, tmp_path: Path) -> None:
    strategies = ("--strategies", "async-raw,presaved")
    report = compare(tmp_path, str(photographs), *QUICK, *strategies, "--compute", "inference", "--model", "lenet")
    assert report["settings"]["compute"] == "inference"
    rule = next(check for check in report["checks"] if check["rule"] == "compute")
    assert rule["held"] is True
    assert "the mean square of the outputs after the same steps" in rule["evidence"]
    assert "inference" in report["recommendation"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("waits", [False, True])
def test_a_plain_strategy_loads_beside_a_simulated_device_unless_the_loop_waits_for_every_step(
    photographs: Path, tmp_path: Path, waits: bool
) -> None:
    options = ["--strategies", "raw", "--compute", "simulated:200ms", *(["--sync-every-step"] if waits else [])]
    report = compare(tmp_path, str(photographs), *QUICK, *options)
    raw = result(report, "raw")
    evidence = next(check["evidence"] for check in report["checks"] if check["rule"] == "compute")
    assert "200 ms" in evidence
    assert ("waited for each step" in evidence) is waits
    # A wait is never shorter than asked, and on a busy machine it ends late.
    assert 10 * 0.2 <= raw["parts"]["compute_alone_seconds"] < 10 * 0.5
    if waits:
        assert raw["host_wait_seconds"] == pytest.approx(raw["parts"]["stall_seconds"])
    else:  # the device is idle only while the first batch is loaded
        assert raw["parts"]["stall_seconds"] < raw["host_wait_seconds"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("source", ["photographs", "digits"])
def test_a_cold_comparison_has_every_strategy_read_the_disk(
    source: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # `digits` as plain files, which every process that opens the source maps.
    folder = tmp_path / "digits"
    if source == "digits":
        etl.demonstration.digits(folder, compress=False)
    else:
        folder = request.getfixturevalue("photographs")
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(100))
    if drop_from_page_cache([probe, *(each for each in folder.rglob("*") if each.is_file())]):
        pytest.skip("files here are kept in memory")
    strategies = "raw,async-raw,process-raw,presaved,async-presaved"
    formats = ("--formats", ",".join(presave.formats())) if source == "photographs" else ()
    cold = ("--cache", "cold", "--compute", "simulated:1ms")
    report = compare(tmp_path, str(folder), *QUICK, *formats, "--strategies", strategies, *cold)
    cache = next(check for check in report["checks"] if check["rule"] == "cache")
    assert cache["broken_by"] == {}
    assert cache["held"]
    assert "posix_fadvise" in cache["evidence"]
    assert len(report["strategies"]) == 3 + 2 * (len(presave.formats()) if formats else 1)


HOLDING = """
import mmap, sys
with open(sys.argv[1], "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    print(len(bytes(mapped)), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_file_that_another_program_keeps_in_memory_disqualifies_a_cold_strategy(
    photographs: Path, tmp_path: Path
) -> None:
    photo = str(next(photographs.rglob("*.jpg")))
    cold = ("--cache", "cold", "--compute", "simulated:1ms")
    arguments = (*QUICK, "--records", "40", "--strategies", "raw,presaved", *cold)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, photo], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        report = compare(tmp_path, str(photographs), *arguments)
        holder.communicate(timeout=60)
    assert result(report, "raw")["verdict"] == "disqualified"
    assert "were not out of the page cache" in result(report, "raw")["disqualified"][0]


def test_rules_that_were_broken_or_not_checked_come_first(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = compare(tmp_path, str(photographs), *QUICK, "--strategies", "raw", "--no-check", "sum", "--memory", "10MB")
    output = capsys.readouterr().out
    assert report["unchecked"] == ["sum"]
    assert next(check["held"] for check in report["checks"] if check["rule"] == "sum") is None
    assert output.startswith("RULES NOT CHECKED: sum")
    assert report["strategies"][0]["verdict"] == "disqualified"
    assert "Nothing can be recommended" in report["recommendation"][0]
    assert "raw is disqualified: resources: it used" in output


def test_a_bad_record_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "photos" / "class"
    folder.mkdir(parents=True)
    for number in range(8):
        Image.fromarray(np.full((40, 40, 3), number, np.uint8)).save(folder / f"{number}.jpg")
    (folder / "5.jpg").write_bytes(b"no image")
    assert (
        main(["compare", str(folder.parent), "--rounds", "1", "--budget", "2s", "--batch-size", "2", "--size", "32"])
        == 2
    )
    assert "class/5.jpg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategies", "raw,fast"), "no strategy is called 'fast'"),
        (("--strategies", "presaved:npy=raw,presaved", "--formats", "npy,hdf5"), "would have the same name"),
        (("--formats", "xml"), "unknown 'xml'"),
        (("--strategy", "fast", "--strategy", "raw"), "no strategy is called 'fast'"),
        (("--format", "xml", "--format", "npy"), "unknown 'xml'"),
        (("--compute", "simulated:soon"), "must be a time such as"),
        (("--until", "crop"), "the pipeline has read, decode, resize, channels_first, normalise"),
        (("--model", "resnet"), "unknown model 'resnet'"),
        (("--cpus", "4096"), "this process may use"),
        (("--html", "no/such/folder.html"), "there is no folder"),
        (("--what-if", "gpus=2"), "--what-if takes any of cpus=8"),
        (("--what-if", "cpus=2", "--what-if", "cache=50%"), "its speed is unknown"),
    ],
)
def test_a_wrong_argument_gives_a_one_line_error(
    photographs: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refusal(capsys, "compare", str(photographs), *QUICK, *arguments)


STEP = """
    def make_step(task):
        def step(batch):
            return {}["image"]
        return step
"""


def test_an_error_of_the_training_step_has_its_place(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with user_module(tmp_path, "my_step", STEP):
        step = ("--strategies", "raw", "--step", "my_step:make_step")
        line = refusal(capsys, "compare", str(photographs), "--quiet", *QUICK, *step)
    assert "KeyError: 'image', at my_step.py:4 (step); its batch is (float32 (4, 3, 32, 32), " in line


@pytest.mark.slow
def test_an_interruption_reports_what_was_measured_so_far(photographs: Path) -> None:
    def interrupt(progress: ComparisonProgress) -> None:
        if progress.phase == "measure" and progress.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    settings = Settings(
        str(photographs), ("raw",), batch_size=4, size=32, threads=1, rounds=4, records=8, budget_seconds=2
    )
    report = run_comparison(settings, interrupt)
    assert report.stopped_early
    assert report.rounds == 2
    assert [metrics.round for metrics in report.strategies[0].rounds] == [0, 1]
    assert servers() == []


def test_an_interruption_before_the_first_round_gives_no_report(photographs: Path) -> None:
    def interrupt(progress: ComparisonProgress) -> None:
        if progress.phase == "check":
            os.kill(os.getpid(), signal.SIGINT)

    settings = Settings(str(photographs), ("raw",), batch_size=4, size=32, threads=1, records=8, budget_seconds=2)
    with pytest.raises(KeyboardInterrupt):
        run_comparison(settings, interrupt)
