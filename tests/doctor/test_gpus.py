"""The doctor sees through NVML who uses the GPUs: here with NVIDIA's Python bindings over a simulated driver."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from etl.doctor import Finding, Severity
from etl.doctor.check import Case
from etl.doctor.checks import cpus
from etl.doctor.checks.cpus import OtherProcesses
from etl.doctor.gpus import Gpu, GpuProcess, Gpus, look_at_gpus
from tests.doctor_cases import Batches, case_of, mlp, quiet_machine
from tests.programs import output_of

SOURCE = Path(__file__).with_name("nvml.c")
CODE = """
import json
from dataclasses import asdict
from etl.doctor.gpus import look_at_gpus
print(json.dumps([asdict(look_at_gpus(own)) for own in (set(), {1, 4_000_000})]))
"""
IDLE = Gpu("aaaa", "A", 0.0, 10**9, 80 * 10**9, ())
HELD = replace(IDLE, other_processes=(GpuProcess(7, "python", 25 * 10**9),))
BUSY = replace(HELD, busy=0.9)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Show a process a driver with two GPUs: as all processes see it, and without two that are its own."""
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(output_of("-c", CODE, LD_LIBRARY_PATH=str(folder)))
    return found


def test_every_gpu_is_seen_with_its_memory_and_processes(seen: list[dict[str, Any]]) -> None:
    found, _ = seen
    assert found["unknown"] == ""
    idle, busy = found["found"]
    assert (idle["name"], idle["uuid"], idle["busy"], idle["other_processes"]) == ("Simulated A", "aaaa", 0.0, [])
    assert (busy["busy"], busy["used_nbytes"], busy["total_nbytes"]) == (0.9, 30 * 10**9, 80 * 10**9)
    largest, smallest = busy["other_processes"]
    assert largest == {"pid": 4_000_000, "name": "unknown", "nbytes": 25 * 10**9}
    assert smallest["pid"] == 1
    assert smallest["name"] != "unknown"


def test_processes_of_this_training_are_left_out(seen: list[dict[str, Any]]) -> None:
    _, busy = seen[1]["found"]
    assert busy["other_processes"] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_the_reason_is_known() -> None:
    found = look_at_gpus(set())
    assert found.found == ()
    assert found.unknown.startswith("NVML: ")


def on_gpus(*gpus: Gpu, unknown: str = "", nvidia_gpus: int = 0) -> Finding:
    machine = replace(quiet_machine(), gpus=Gpus(gpus, unknown), nvidia_gpus=nvidia_gpus)
    return OtherProcesses().look(Case(machine))


def test_another_process_that_computes_on_the_gpu() -> None:
    found = on_gpus(BUSY)
    assert found.severity is Severity.SERIOUS
    assert found.found == "other processes compute on the GPU"
    assert "busy 90%; 1.0 of 80.0 GB in use; other processes: python (7) 25.0 GB" in found.evidence
    assert "CUDA_VISIBLE_DEVICES" in str(found.remedy)


def test_another_process_that_only_holds_memory() -> None:
    found = on_gpus(HELD)
    assert found.severity is Severity.WARNING
    assert "hold much of the GPU's memory" in found.found


def test_a_free_gpu_beside_free_cpus() -> None:
    found = on_gpus(IDLE)
    assert (found.severity, found.found) == (Severity.FINE, "the CPUs are free; the GPU is free")
    assert "the hypervisor took" in found.evidence


def test_busy_cpus_outweigh_a_free_gpu() -> None:
    machine = replace(quiet_machine(), gpus=Gpus((IDLE,)), other_processes=0.5)
    found = OtherProcesses().look(Case(machine))
    assert found.found == "other processes use the CPUs"
    assert "busy 0%" in found.evidence


def test_a_gpu_whose_use_is_unknown_is_not_called_free() -> None:
    found = on_gpus(unknown="NVML: no", nvidia_gpus=1)
    assert found.found == "the CPUs are free; it is unknown who else uses the GPU"
    assert "NVML: no" in found.evidence


def test_processes_cannot_be_told_apart_where_this_one_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # as in a container: 7 may be this process
    found = on_gpus(HELD)
    assert found.severity is Severity.FINE
    assert "processes, this one among them: python (7) 25.0 GB" in found.evidence
    assert on_gpus(replace(HELD, lists_own=True)).severity is Severity.WARNING


def test_a_training_on_the_cpu_does_not_mind_who_uses_the_gpu() -> None:
    machine = replace(quiet_machine(), gpus=Gpus((BUSY,)))
    found = OtherProcesses().look(replace(case_of(mlp(), Batches()), machine=machine))
    assert (found.severity, found.found) == (Severity.FINE, "the CPUs are free")


@pytest.mark.parametrize(("uuid", "severity"), [("aaaa", Severity.FINE), ("bbbb", Severity.SERIOUS)])
def test_only_the_gpu_of_compute_counts(uuid: str, severity: Severity, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(quiet_machine(), gpus=Gpus((IDLE, replace(IDLE, uuid="bbbb", busy=0.9))))
    case = case_of(mlp(), Batches())
    assert case.observation is not None
    observation = replace(case.observation, device=torch.device("cuda", 0))
    monkeypatch.setattr(cpus, "_uuid_of", lambda _: uuid)
    assert OtherProcesses().look(replace(case, machine=machine, observation=observation)).severity is severity
