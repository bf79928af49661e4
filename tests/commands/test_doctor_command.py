"""`etl doctor`: the machine alone, and a source with a model."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from etl.commands import main
from etl.doctor import Examination, examine
from etl.doctor.check import Case
from etl.doctor.checks.cpus import OtherProcesses
from etl.doctor.memory_need import MemoryNeed
from etl.doctor.show import show_examination
from tests.doctor_cases import quiet_machine
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("quick_doctor")


def test_without_a_source_the_machine_is_examined_and_a_missing_package_is_named_with_its_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("etl.doctor.examination.look_at_machine", lambda: replace(quiet_machine(), missing=("numba",)))
    report = tmp_path / "report.json"
    assert main(["doctor", "--json", str(report)]) == 0
    content = json.loads(report.read_text())
    assert len(content["findings"]) == 13
    assert content["machine"]["cpus"] >= 1
    assert "stages" not in content
    shown = capsys.readouterr().out
    assert "Other processes: the CPUs are free" in shown
    assert "not looked at" in shown
    assert "numba is not installed, so this is slower or unavailable: compiled loops" in shown


@pytest.mark.slow
def test_a_source_is_trained_on_and_its_stages_are_timed(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    options = ["--size", "32", "--batch-size", "8", "--batches", "4", "--strategy", "raw", "--objects", "--pauses"]
    code = main(["doctor", str(photographs), *options, "--json", str(report)])
    content = json.loads(report.read_text())
    by_name = {each["check"]: each for each in content["findings"]}
    assert code == int(any(each["severity"] == "serious" for each in content["findings"]))
    assert "ms for a batch and computes for" in by_name["loading"]["evidence"]
    assert content["batches_per_epoch"] == 5
    assert [each["name"] for each in content["stages"]["stages"]][:2] == ["read", "decode"]
    assert all(each["warm"] >= 0 for each in content["stages"]["stages"])
    assert content["stages"]["disk_bytes_per_second"] > 0
    assert [each["generation"] for each in content["pauses"]["generations"]] == [0, 1, 2]
    assert content["heap"]["objects"] > 10_000
    assert content["heap"]["leaks"] == []
    shown = capsys.readouterr().out
    assert shown.startswith(("First: ", "Nothing was found"))
    assert "No type grows in every epoch." in shown
    assert "Reading the files alone" in shown


def test_lines_of_a_finding_that_is_wider_than_the_terminal_are_indented() -> None:
    console = Console(file=io.StringIO(), width=50, record=True)
    show_examination(examine(), console)
    heading, *lines = console.export_text().splitlines()
    assert heading == "Nothing was found that slows training down."
    assert max(map(len, lines)) <= 50
    assert all(line.startswith(" " * 15) or line[13:15] == "  " for line in lines)
    words = " ".join(" ".join(lines).split())
    assert "not looked at One model used from several threads: there is no model and no data to look at" in words


def test_a_finding_says_why_it_matters_and_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=400)
    machine = replace(quiet_machine(), other_processes=0.5)
    finding = OtherProcesses().look(Case(machine))
    need = MemoryNeed(peak_nbytes=2 * 10**9, data_nbytes=3 * 10**9, available_nbytes=10**10)
    show_examination(Examination(machine, [finding], 0.2, 10, memory=need), console)
    first, batch, memory, heading, evidence, why, change = capsys.readouterr().out.splitlines()
    assert first.startswith("First: other processes use the CPUs: end them, or leave CPUs to them")
    assert batch == "A batch takes 200.0 ms; an epoch of 10 batches takes 2 s."
    assert memory.startswith("Memory: 2.0 GB at the peak, and 10.0 GB are left. Allow it 2.5 GB")
    assert heading.strip() == "serious  Other processes: other processes use the CPUs"
    assert "other processes used 50%" in evidence
    assert why.strip().startswith("Why it matters: two threads that share a CPU each take twice as long")
    assert change.strip().startswith("Change: end them, or leave CPUs to them")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so the variable is right")
def test_a_source_is_examined_on_the_cpu_if_the_preferred_backend_does_not_exist(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BACKEND_PRIORITY_GPU", "100")
    assert main(["doctor", str(photographs), "--size", "32", "--batch-size", "4", "--batches", "2"]) == 1
    shown = capsys.readouterr().out
    assert "Backend in use: backend 'cuda' was preferred by" in shown
    assert "Reading the files alone" in shown


@pytest.mark.parametrize(
    "option", ["--model mlp", "--step a:b", "--pipeline a:b", "--try", "--objects", "--pauses", "--profile a.svg"]
)
def test_an_option_that_needs_a_source_is_refused_without_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{option.split()[0]} needs a SOURCE" in refusal(capsys, "doctor", *option.split())


OWN_TRAINING = """
import torch

class Mappings(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"image": torch.full((8,), float(index)), "size": torch.ones(2), "label": index % 3}

def dataset():
    return Mappings()

def make_step(batch_size):
    model = torch.nn.Linear(10, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch):
        assert list(batch) == ["image", "size", "label"] and batch["image"].dtype == torch.float32
        optimizer.zero_grad()
        outputs = model(torch.cat([batch["image"], batch["size"]], 1))
        torch.nn.functional.cross_entropy(outputs, batch["label"]).backward()
        optimizer.step()

    return step

def make_failing_step(task):
    def step(batch):
        raise RuntimeError("no such layer")
    return step

def fail():
    raise ImportError("no such library")

def make_number():
    return 5
"""


@pytest.fixture
def own_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module with a data set and steps to the working folder, and return its name."""
    name = f"training_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN_TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.slow
def test_a_data_set_is_trained_on_with_a_step_of_its_own(
    own_training: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    options = ["--batch-size", "8", "--batches", "4", "--strategy", "raw", "--objects", "--pauses", "--try"]
    arguments = ["doctor", f"{own_training}:dataset", "--step", f"{own_training}:make_step", *options]
    code = main([*arguments, "--json", str(report)])
    content = json.loads(report.read_text())
    by_name = {each["check"]: each for each in content["findings"]}
    assert code == int(any(each["severity"] == "serious" for each in content["findings"]))
    assert content["batches_per_epoch"] == 8
    assert {name for name, each in by_name.items() if "the user's own function" in each["found"]} >= {
        "sharing",
        "data_type",
        "network",
        "fallback",
    }
    assert "ms for a batch and computes for" in by_name["loading"]["evidence"]
    assert re.search(r"with \d+ times the records", by_name["batch_size"]["evidence"])
    assert [each["name"] for each in content["stages"]["stages"]] == ["read"]
    assert content["pauses"]["batches"] == 4
    assert content["heap"]["leaks"] == []
    assert "Reading the files alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("make_failing_step", "RuntimeError: no such layer; its batch is {'image': float32"),
        ("fail", "ImportError: no such library"),
        ("make_number", "--step returned a int; it must return a function of a batch"),
        ("missing", "AttributeError: module"),
    ],
)
def test_a_step_that_raises_is_one_sentence(
    own_training: str, function: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "doctor", f"{own_training}:dataset", "--step", f"{own_training}:{function}")
    assert "--step" in line
    assert message in line


@pytest.mark.parametrize("option", [["--model", "mlp"], ["--backend", "cpu"]])
def test_an_option_for_a_model_is_refused_beside_a_step(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"so {option[0]} has no effect with it" in refusal(capsys, "doctor", "digits", "--step", "a:b", *option)
