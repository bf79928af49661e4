"""The doctor finds each of the thirteen causes in a machine or training that has it, and nothing in a healthy one."""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import etl
from etl.doctor import Examination, Severity, examine
from etl.doctor.check import Case, Trial
from etl.doctor.checks import CHECKS, batch_size, cpus, data_type, hardware
from etl.doctor.checks.batch_size import BatchSize, Rebatched
from etl.doctor.checks.cpus import OtherProcesses, Threads
from etl.doctor.checks.data_type import DataType
from etl.doctor.checks.forward_pass import Fallback, SharedModel
from etl.doctor.checks.hardware import BackendInUse, CpuExtensions, VendorKernels
from etl.doctor.checks.loading import LoadingBottleneck
from etl.doctor.checks.memory import GarbageCollection, MemoryReuse
from etl.doctor.checks.network import NetworkSize, size_of
from etl.doctor.machine import _taken, look_at_machine
from etl.doctor.setup import Setup, make_setup
from etl.doctor.steps import StepTimes, time_compute
from etl.loading.batch import Batch
from etl.runtime import HeapPolicy, ThreadPolicy
from etl.runtime.resources import available_cpus
from etl.training import ParallelInference
from tests.doctor_cases import (
    CLASSES,
    FEATURES,
    Batches,
    Slow,
    case_of,
    convolutional,
    finding,
    look,
    mlp,
    predicting,
    quiet_machine,
)
from tests.programs import output_of

pytestmark = pytest.mark.usefixtures("alone")
ZEROS = TensorDataset(torch.zeros(64, FEATURES), torch.zeros(64, dtype=torch.int64))
WORSE = (Severity.WARNING, Severity.SERIOUS)


def train(model: torch.nn.Module, batches: Any, **options: Any) -> Examination:
    return examine(model, batches, backend="cpu", batches=6, **options)


def test_a_healthy_training_has_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside another test, one thread may really be faster than two. And larger batches are faster for each record.
    monkeypatch.setattr(cpus, "time_compute", lambda setups, *_: [0.01] * len(setups))
    monkeypatch.setattr(batch_size, "time_compute", lambda _, batches, *__: [1e-4 * each.records for each in batches])
    with HeapPolicy("retain"):  # glibc's default maps gradients of some megabytes afresh in every step
        examination = train(mlp(), Batches())
    findings = examination.findings
    assert [str(each) for each in findings if each.severity in (*WORSE, Severity.NOTE)] == []
    assert {each.severity for each in findings} <= {Severity.FINE, Severity.NOT_LOOKED_AT}
    assert len(findings) == len(CHECKS) == 13  # and none for ranks
    assert examination.rank is None
    assert "rank" not in str(examination)
    assert examination.batches_per_epoch == 12
    json.dumps(examination.as_dict())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so the variable is right")
def test_a_preferred_backend_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND_PRIORITY_GPU", "100")
    found = BackendInUse().look(Case(look_at_machine(seconds=0.0)))
    assert found.severity is Severity.SERIOUS
    assert "BACKEND_PRIORITY_GPU=100" in found.evidence
    assert found.remedy == "unset BACKEND_PRIORITY_GPU, or request a backend that the machine has"


def test_a_gpu_that_torch_cannot_use() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch can use it")
    found = BackendInUse().look(Case(replace(quiet_machine(), nvidia_gpus=1)))
    assert found.severity is Severity.SERIOUS
    assert "torch cannot use the NVIDIA GPUs" in found.found


def test_a_model_on_the_cpu_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(mlp(), Batches())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Simulated")
    monkeypatch.setattr(hardware, "find_backend", lambda _: etl.backend("cpu"))
    found = BackendInUse().look(case)
    assert found.severity is Severity.SERIOUS
    assert found.found == "compute runs on the CPU, and there is a GPU: Simulated"
    assert found.remedy == 'use backend="cuda"'
    monkeypatch.setenv("BACKEND_PRIORITY_CPU", "7")
    preferred = replace(case, machine=replace(case.machine, variables={"BACKEND_PRIORITY_CPU": "7"}))
    assert BackendInUse().look(preferred).remedy == "unset BACKEND_PRIORITY_CPU"


def test_a_torch_without_a_vendor_s_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.sub("BLAS_INFO=[a-z]+", "BLAS_INFO=generic", torch.__config__.show())
    monkeypatch.setattr(torch.__config__, "show", lambda: shown)
    found = VendorKernels().look(Case(quiet_machine()))
    assert found.severity is Severity.WARNING
    assert found.found == "this torch multiplies matrices without the library of a vendor"
    assert "BLAS of torch: generic" in found.evidence


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_operations_that_leave_the_device() -> None:
    class Leaves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(FEATURES, CLASSES)

        def forward(self, features: torch.Tensor) -> Any:
            scale = features.abs().mean().item()
            return self.dense(features.cpu().to(features.device) * scale)

    found = finding(examine(Leaves(), Batches(), backend="cuda", batches=2), "fallback")
    assert found.severity is Severity.SERIOUS
    assert all(each in found.evidence for each in ("item in the model", "cuda to cpu in the model"))


def test_onednn_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    found = look(VendorKernels(), convolutional(), Batches())
    assert not torch.backends.mkldnn.enabled
    assert found.severity in (*WORSE, Severity.NOTE)
    assert found.found == "oneDNN is switched off"
    assert "ms without and" in found.evidence


def test_convolutions_that_onednn_does_not_have() -> None:
    found = look(VendorKernels(), convolutional(torch.float64), Batches(dtype="float64"))
    assert found.severity is Severity.SERIOUS
    assert re.search(r"torch's own kernels, \d+% of a training step", found.found)
    assert "aten::_slow_conv2d_forward" in found.evidence
    assert "float32" in str(found.remedy)


def test_the_profiler_names_what_onednn_ran_and_the_evidence_the_libraries_of_matrix_products() -> None:
    found = look(VendorKernels(), convolutional(), Batches())
    assert (found.severity, found.found) == (Severity.FINE, "oneDNN is in use")
    assert re.search(r"aten::mkldnn_convolution \d+%", found.evidence)
    assert re.search(r"BLAS of torch: \w+; of other libraries: \w+ \d", found.evidence)
    without = look(VendorKernels(), mlp(), Batches())
    assert without.found == "oneDNN is switched on; this step does not use it"


def test_a_loader_slower_than_compute() -> None:
    found = look(LoadingBottleneck(), Slow(0.05), Batches(seconds=0.07))
    assert found.severity is Severity.SERIOUS
    assert found.saves_seconds is not None
    assert 12 * 0.05 <= found.saves_seconds < 12 * 0.5
    assert "AsyncIterator" in str(found.remedy)


class Late:
    """A stage that takes `seconds`."""

    name = "late"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.seconds)
        return record


@pytest.mark.parametrize(("load", "waits"), [(0.1, True), (0.01, False)])
def test_the_example_of_the_documents(load: float, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # "If a network takes 100ms to perform fitting on a single minibatch, but data loading takes 200ms, [it] will have
    # to wait 100ms"; with 50 ms of loading there is no bottleneck. Here compute takes 50 ms, and loading by one thread
    # twice as long, or a fifth of it, so that the test holds if a busy machine doubles these times.
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (LoadingBottleneck(),))
    records = [{"features": np.zeros(FEATURES, np.float32), "label": 0} for _ in range(40)]
    raw = etl.RawIterator(records, etl.Pipeline([Late(load)]), batch_size=1)
    with etl.AsyncIterator(raw, threads=1) as loader:
        found = finding(train(Slow(0.05), loader), "loading")
        assert loader.state_dict()["position"] == 0
    assert (found.severity in WORSE) is waits
    if waits:
        assert found.saves_seconds is not None
        assert 0 < found.saves_seconds < 40 * 0.15
        assert "although the data are loaded ahead" in found.found


def test_half_a_million_objects() -> None:
    kept = [[] for _ in range(500_000)]  # type: ignore[var-annotated]
    found = look(GarbageCollection(), mlp(), Batches())
    assert len(kept) == 500_000
    assert found.severity in WORSE
    assert "a bottleneck if collections are frequent" in found.found
    assert "freeze" in str(found.remedy)


def test_batches_of_one_record() -> None:
    found = look(BatchSize(), mlp(), Batches(size=1))
    assert found.severity in WORSE
    assert found.found == "batches of 1 record"
    assert found.saves_seconds is not None
    assert found.saves_seconds > 0


def test_a_module_that_four_threads_call() -> None:
    class Parallel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, features: torch.Tensor) -> Any:
            threads = [threading.Thread(target=self.inner, args=(features.detach(),)) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            return self.inner(features)

    found = look(SharedModel(), Parallel(), Batches(count=3))
    assert found.severity is Severity.SERIOUS
    assert "threads call module inner" in found.found
    assert "give each thread its own model" in str(found.remedy)


def test_a_model_that_is_served_by_its_copies_meanwhile() -> None:
    model = mlp()
    with ParallelInference(model, workers=2, backend="cpu") as server, predicting(server.output, clients=2):
        found = look(SharedModel(), model, Batches())
    assert found.found == "one thread calls the model"


def test_weights_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def halved(setups: Sequence[Setup], batches: Sequence[Batch]) -> list[float]:
        time_compute(setups, batches)
        models = [setup.of_model.model for setup in setups if setup.of_model is not None]
        seen.append([str(next(model.parameters()).dtype) for model in models])
        return [2.0, 1.0]

    # The real speed-up of float32 depends on the machine and its load.
    monkeypatch.setattr("etl.doctor.steps.TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(data_type, "time_compute", halved)
    found = look(DataType(), convolutional(torch.float64), Batches(dtype="float64"))
    assert found.found == "parameters are float64"
    assert "takes 2000.0 ms, in float32 1000.0 ms" in found.evidence
    assert seen[0] == ["torch.float64", "torch.float32"]
    assert found.severity in WORSE


def test_fresh_memory_for_every_batch() -> None:
    class Fresh(Batches):
        def __iter__(self) -> Iterator[Batch]:
            for _ in range(self.count):
                memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                features = np.frombuffer(memory, np.float32).reshape(-1, FEATURES)
                features[:] = 0.0
                yield Batch(features[:8192], np.zeros(8192, np.int64), labels_mask=None, features_mask=None)

    found = look(MemoryReuse(), torch.nn.Linear(FEATURES, CLASSES), Fresh())
    assert found.severity in WORSE
    assert "MB of fresh memory are touched for every batch" in found.found


def test_a_network_beyond_the_guidelines() -> None:
    deep = torch.nn.Sequential(*(torch.nn.Conv2d(1, 1, 1) for _ in range(150)))
    model = torch.nn.Sequential(
        torch.nn.AvgPool2d(100), deep, torch.nn.AvgPool2d(6), torch.nn.Flatten(), torch.nn.Linear(1, 20_000)
    )
    images = Batches(size=1, count=1)
    images.batch = Batch(np.zeros((1, 1, 600, 600), np.float32), np.zeros(1, np.int64))
    found = look(NetworkSize(), model, images)
    assert found.severity is Severity.WARNING
    assert found.found == (
        "150 convolutional layers, more than about 100; 600 pixels a side, more than about 500; 20,000 classes, more "
        "than about 10,000"
    )


class Block(torch.nn.Module):
    """A hand-written transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norms[0](tokens)).chunk(3, -1)
        tokens = tokens + self.out(torch.softmax(query @ key.transpose(1, 2), -1) @ value)
        mixed: torch.Tensor = tokens + self.mlp(self.norms[1](tokens))
        return mixed


def transformer(width: int, *layers: torch.nn.Module) -> torch.nn.Module:
    """Return a model that turns features into tokens of four, and applies layers and a head."""
    embed = torch.nn.Sequential(torch.nn.Unflatten(1, (FEATURES // 4, 4)), torch.nn.Linear(4, width))
    return torch.nn.Sequential(embed, *layers, torch.nn.Flatten(), torch.nn.Linear(FEATURES // 4 * width, CLASSES))


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformer(16, *(Block(16) for _ in range(12))),
        lambda: transformer(700, Block(700)),
        lambda: transformer(
            16, torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, batch_first=True), 12)
        ),
        lambda: transformer(16, *(torch.nn.TransformerEncoderLayer(16, 4, norm_first=True) for _ in range(12))),
    ],
    ids=["by hand", "by hand, wide", "encoder", "layers"],
)
def test_the_guideline_on_dense_layers_is_not_for_transformers(make: Callable[[], torch.nn.Module]) -> None:
    model = make()
    assert size_of(model).dense > 20 or size_of(model).units > 2048
    found = look(NetworkSize(), model, Batches(size=4))
    assert (found.severity, found.found) == (Severity.FINE, "within the guidelines")


@pytest.mark.parametrize("between", [torch.nn.ReLU, torch.nn.SiLU, lambda: torch.nn.LayerNorm(16)])
def test_a_perceptron_beyond_the_guidelines(between: Callable[[], torch.nn.Module]) -> None:
    hidden = [part for _ in range(23) for part in (torch.nn.Linear(16, 16), between())]
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 3000), torch.nn.Linear(3000, 16), *hidden, torch.nn.Linear(16, CLASSES)
    )
    found = look(NetworkSize(), model, Batches(size=4))
    assert found.found == (
        "26 dense layers in series, more than about 20; 3,000 units in a dense layer, more than about 2,048"
    )


def test_layers_of_every_kind_are_counted() -> None:
    size = size_of(
        torch.nn.ModuleList([torch.nn.LSTM(4, 1500, num_layers=3), torch.nn.Linear(3000, 7), torch.nn.Linear(7, 5)])
    )
    assert (size.recurrent, size.recurrent_units, size.dense, size.units, size.classes) == (3, 1500, 2, 7, 5)


def test_an_operation_that_leaves_torch_and_comes_back() -> None:
    class There(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features + torch.from_numpy(np.tanh(features.detach().cpu().numpy()))

    model = torch.nn.Sequential(There(), torch.nn.Linear(FEATURES, CLASSES))
    found = look(Fallback(), model, Batches())
    assert found.severity is Severity.WARNING
    assert found.evidence.startswith("numpy in 0 (1 a batch)")


def test_kernels_below_what_the_cpu_has() -> None:
    best = torch.backends.cpu.get_cpu_capability()
    if best == "DEFAULT":
        pytest.skip("this CPU has no better kernels")
    code = (
        "from etl.doctor.check import Case; from etl.doctor.checks.hardware import CpuExtensions\n"
        "from etl.doctor.machine import look_at_machine\n"
        "found = CpuExtensions().look(Case(look_at_machine(0.0)))\n"
        "print(found.severity.value, found.found, found.remedy, sep='|')"
    )
    found = f"serious|torch computes with DEFAULT, and this CPU has {best}|unset ATEN_CPU_CAPABILITY\n"
    assert output_of("-c", code, ATEN_CPU_CAPABILITY="default") == found
    assert CpuExtensions().look(Case(quiet_machine())).severity is Severity.FINE


def test_a_busy_neighbour() -> None:
    # Started through a shell, so that they are not children of this process.
    start = (
        f"for i in $(seq {available_cpus()}); do {sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!; done"
    )
    started = subprocess.run(["sh", "-c", start], stdout=subprocess.PIPE, text=True, check=True)
    busy = [int(line) for line in started.stdout.split()]
    try:
        machine = look_at_machine(1.0)
    finally:
        for each in busy:
            os.kill(each, signal.SIGKILL)
    assert {each.pid for each in machine.busy_processes} & set(busy)
    found = OtherProcesses().look(Case(machine))
    assert found.severity in WORSE
    assert "python" in found.evidence
    assert OtherProcesses().look(Case(quiet_machine())).severity is Severity.FINE


@pytest.mark.parametrize(
    ("share", "quota", "of_quota", "taken"),
    [
        (0.5, None, 9.0, 0.5),
        (0.5, 128.0, 0.0, 0.5),
        (0.5, 2.0, 0.0, 0.0),
        (63 / 64, 2.0, 0.0, 0.5),
        (1.0, 2.0, 0.0, 1.0),
        (2 / 64, 2.0, 0.5, 0.25),
        (2 / 64, 2.0, 2.1, 1.0),
        (-0.01, None, 0.0, 0.0),
    ],
)
def test_others_take_nothing_if_they_leave_as_many_cpus_free_as_a_quota_allows_and_use_none_of_it(
    share: float, quota: float | None, of_quota: float, taken: float
) -> None:
    assert _taken(share, 64, quota, of_quota) == pytest.approx(taken)


def test_a_cpu_quota_that_stops_the_threads() -> None:
    found = OtherProcesses().look(Case(replace(quiet_machine(), throttled=0.97, cpu_quota=0.5)))
    assert found.severity is Severity.SERIOUS
    assert found.found == "a CPU quota stops the threads of this process"
    assert found.evidence.startswith("the quota of 0.5 CPUs was used up in 97% of its periods while training")
    assert OtherProcesses().look(Case(replace(quiet_machine(), throttled=0.05))).severity is Severity.FINE


def test_more_threads_than_cpus() -> None:
    many = 4 * available_cpus()
    with ThreadPolicy(many):
        found = look(Threads(), mlp(), Batches())
    assert found.severity in WORSE
    assert f"{many} threads compute" in found.found
    recommended = re.search(r"ThreadPolicy\((\d+)\)", str(found.remedy))
    assert recommended is not None
    assert 1 <= int(recommended[1]) <= available_cpus()


def test_the_fastest_number_of_threads_is_recommended_and_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower_with_more(setups: Sequence[Setup], batches: Sequence[Any]) -> list[float]:
        assert len(batches) == len(setups)
        taken = []
        for setup in setups:
            with ExitStack() as stack:
                setup.enter(stack)
                taken.append(0.01 * torch.get_num_threads())
        return taken

    monkeypatch.setattr(cpus, "time_compute", slower_with_more)
    with ThreadPolicy(4):
        case = case_of(mlp(), Batches())
        found = Threads().look(replace(case, machine=replace(case.machine, cpus=4, cores=2)))
    assert found.severity is Severity.SERIOUS
    assert "4 CPUs for this process, 2 physical cores" in found.evidence
    assert "10.0 ms with 1, 20.0 ms with 2, 40.0 ms with 4" in found.evidence
    assert str(found.remedy).startswith("etl.runtime.ThreadPolicy(1),")


def test_a_gain_that_does_not_come_again_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([[0.01, 0.02], [0.02, 0.02]])
    monkeypatch.setattr(cpus, "time_compute", lambda *_: next(measured))
    with ThreadPolicy(2):
        case = case_of(mlp(), Batches())
        found = Threads().look(replace(case, machine=replace(case.machine, cpus=2, cores=2)))
    assert found.severity is Severity.FINE


@pytest.mark.alone
def test_each_remedy_is_tried_alone() -> None:
    examination = train(mlp(torch.float64), Batches(size=1, dtype="float64", seconds=0.02), try_remedies=True)
    size = finding(examination, "batch_size")
    assert size.trial is not None
    assert size.trial.low <= size.trial.ratio <= size.trial.high
    assert size.trial.ratio < 1
    assert examination.seconds_per_batch is not None
    saved = min(size.trial.without_seconds - size.trial.with_seconds, examination.seconds_per_batch)
    assert size.saves_seconds == pytest.approx(12 * saved)
    loading = finding(examination, "loading")
    assert loading.trial is not None
    assert loading.trial.ratio < 1


def test_a_loader_that_must_not_be_prefetched_is_not_wrapped_to_try_it() -> None:
    class Camera(Batches):
        async_supported = False

    def remedied(batches: Any) -> Setup | None:
        setup = make_setup(mlp(), batches, etl.backend("cpu"), None)
        return LoadingBottleneck().apply(setup, Case(quiet_machine()))

    assert remedied(Camera()) is None
    wrapped = remedied(Batches())
    assert wrapped is not None
    assert isinstance(wrapped.batches, etl.AsyncIterator)


def test_the_finding_that_saves_most_comes_first() -> None:
    examination = train(Slow(0.001), Batches(size=1, seconds=0.01))
    saves = [each.saves_seconds for each in examination.findings if each.saves_seconds is not None]
    assert saves == sorted(saves, reverse=True)
    assert examination.first is examination.findings[0]
    assert examination.first.remedy in str(examination)


def test_the_model_and_the_iterator_are_left_as_they_were() -> None:
    model = mlp()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    records = [{"features": np.zeros(FEATURES, np.float32), "label": 0} for _ in range(64)]
    iterator = etl.RawIterator(records, etl.Pipeline([]), batch_size=8)
    iterator.set_epoch(3)
    batches = iter(iterator)
    next(batches)
    next(batches)
    state = iterator.state_dict()
    train(model, iterator)
    assert iterator.state_dict() == state
    assert sum(batch.records for batch in iterator) == 48
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_a_dataloader_is_examined_too() -> None:
    examination = train(mlp(), DataLoader(ZEROS, batch_size=32))
    assert examination.batches_per_epoch == 2
    assert finding(examination, "batch_size").found.startswith("batches of 32 records")


class Several(torch.nn.Module):
    """A model that returns more than the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(FEATURES, CLASSES)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.dense(features), features


@pytest.mark.parametrize(
    ("model", "batches", "reason"),
    [
        (None, Batches(), "a model and an iterator"),
        (mlp(), None, "a model and an iterator"),
        (mlp(), [], "no batches"),
        (mlp(), [1, 2], "a pair of features and labels, .*, not a int"),
        (mlp(), 5, "batches come from an iterable, such as .*, not a int"),
        (mlp(), [Batch(np.zeros((1, FEATURES), np.float32), None)], "no labels"),
        (Several(), Batches(), r"the model returns a tuple of 2, .* give a loss of your own \(loss=\)"),
    ],
)
def test_a_training_that_cannot_be_examined_is_refused(model: Any, batches: Any, reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        examine(model, batches, backend="cpu")


def test_a_wrapper_of_a_loader_without_state_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (LoadingBottleneck(),))

    class Prepared(Batches):
        """As Accelerate returns it for a DataLoader."""

        def state_dict(self) -> Any:
            raise AttributeError("'DataLoader' object has no attribute 'dl_state_dict'")

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError

    assert train(mlp(units=8), Prepared()).batches_per_epoch == 12


def test_what_reads_ahead_of_a_dataloader_is_left_at_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (LoadingBottleneck(), Threads()))
    loader = DataLoader(ZEROS, batch_size=32)
    for iterator in (etl.AsyncIterator(loader), etl.DeviceIterator(loader, "cpu")):
        iterator.set_epoch(4)
        assert train(mlp(), iterator).batches_per_epoch == 2
        assert iterator.epoch == 4
        assert sum(len(features) for features, _ in iterator) == 64


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        (Batches(), "training waits for data"),  # it may wrap what loads ahead
        (DataLoader(ZEROS), "loading and compute take turns: nothing is loaded while the model trains"),
        (DataLoader(ZEROS, num_workers=1), "training waits for data, although the data are loaded ahead"),
    ],
)
def test_loading_and_compute_take_turns_only_if_that_is_known(batches: Any, found: str) -> None:
    times = StepTimes(etl=[0.02] * 3, compute=[0.08] * 3)
    seconds = {"etl_seconds": 0.02, "compute_seconds": 0.08, "rank_wait_seconds": 0.0}
    observation: Any = SimpleNamespace(times=times, count=3, diagnosis=None, **seconds)
    case = Case(quiet_machine(), make_setup(mlp(units=8), batches, etl.backend("cpu"), None), observation)
    assert LoadingBottleneck().look(case).found == found


def test_batches_are_joined_record_by_record() -> None:
    batches = [Batch((np.full((2, 3), number), np.zeros((2, 1))), np.full(2, number)) for number in range(5)]
    first, last = Rebatched(batches, 3)
    assert first.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert [part.shape for part in last.features] == [(4, 3), (4, 1)]
    assert len(Rebatched(batches, 3)) == 2


def test_no_saving_exceeds_the_epoch_and_a_remedy_that_costs_time_says_so() -> None:
    times = StepTimes(etl=[0.02] * 3, compute=[0.08] * 3)
    observation: Any = SimpleNamespace(times=times)
    case = Case(quiet_machine(), cast(Any, SimpleNamespace(batches_per_epoch=340)), observation)
    # A step took 0.5 s on a machine that did something else, too, and 0.25 s with the remedy.
    half = Threads().slower(case, observation, times.saved(0.5, 0.25), "found", "evidence", "remedy")
    assert half.saves_seconds == pytest.approx(340 * 0.04)
    most = Threads().slower(case, observation, 0.36, "found", "evidence", "remedy")
    assert most.saving == "would save about 34 s per epoch"
    slower = replace(most, trial=Trial(0.1, 0.2, 2.0, 1.9, 2.1), saves_seconds=-34.0)
    assert slower.saving == "costs 34 s per epoch"
