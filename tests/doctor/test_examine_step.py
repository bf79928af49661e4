"""The doctor examines a user's training step, whose model it does not know."""

from __future__ import annotations

import json
import mmap
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import etl
from etl.doctor import Severity, examine
from etl.doctor.check import OWN_STEP, Case
from etl.doctor.checks.batch_size import BatchSize, Rebatched
from etl.doctor.checks.hardware import BackendInUse
from etl.doctor.checks.loading import LoadingBottleneck
from etl.doctor.memory_need import MemoryNeed
from etl.doctor.observation import Observation, observe_training
from etl.doctor.setup import StepSetup
from etl.doctor.steps import StepTimes, time_steps
from tests.doctor_cases import CLASSES, FEATURES, Batches, finding, mlp, quiet_machine

pytestmark = pytest.mark.usefixtures("alone")
OF_A_MODEL = {"sharing", "data_type", "network", "fallback"}


class Mappings(torch.utils.data.Dataset[dict[str, Any]]):
    """Items with two inputs and a name."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"left": torch.full((FEATURES,), float(index)), "right": torch.ones(2), "target": index % CLASSES}


def do_nothing(batch: Any) -> None:
    pass


def pause(batch: Any) -> None:
    time.sleep(0.002)


def test_a_batch_that_is_only_mapped_is_read_while_it_is_loaded() -> None:
    pages, faults_of_steps = 2048, []

    def batches() -> Iterator[np.ndarray]:
        for _ in range(6):
            memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            yield np.frombuffer(memory, np.uint8).reshape(pages, -1)

    def step(batch: np.ndarray) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        batch[:, 0].sum()
        faults_of_steps.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    class Epochs:
        def __iter__(self) -> Iterator[np.ndarray]:
            return batches()

    times, _ = time_steps(StepSetup(Epochs(), step), 4)
    timed = faults_of_steps[-len(times.etl) :]
    assert len(timed) == 4
    assert max(timed) < pages / 10


def test_a_step_gets_the_batches_of_a_dataloader_as_they_are_and_trains_what_it_closes_over() -> None:
    model = mlp(units=64)
    optimizer = torch.optim.Adam(model.parameters())
    before = [each.clone() for each in model.parameters()]
    seen = []

    def step(batch: dict[str, torch.Tensor]) -> None:
        seen.append({name: tuple(each.shape[1:]) for name, each in batch.items()})
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["left"]), batch["target"]).backward()
        optimizer.step()

    loader = torch.utils.data.DataLoader(Mappings(), batch_size=32)
    examination = examine(iterator=loader, step=step, batches=4)
    assert examination.batches_per_epoch == 2
    assert len(seen) >= 4
    assert all(each == {"left": (FEATURES,), "right": (2,), "target": ()} for each in seen)
    assert finding(examination, "batch_size").found.startswith("batches of 32 records")
    assert any(not torch.equal(after, each) for after, each in zip(model.parameters(), before, strict=True))
    json.dumps(examination.as_dict())


def test_what_only_a_model_can_show_is_not_looked_at() -> None:
    examination = examine(iterator=Batches(), step=pause, batches=4)
    not_looked_at = {each.check: each.found for each in examination.findings if each.severity is Severity.NOT_LOOKED_AT}
    unknown = OF_A_MODEL | ({"backend"} if torch.cuda.is_initialized() else set())
    assert set(not_looked_at) == unknown
    assert all(reason.startswith(OWN_STEP) for reason in not_looked_at.values())


def test_waits_for_data_are_found_around_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (LoadingBottleneck(),))
    found = finding(examine(iterator=Batches(seconds=0.1), step=lambda batch: time.sleep(0.1), batches=4), "loading")
    assert found.severity is Severity.SERIOUS
    assert "AsyncIterator" in str(found.remedy)


def test_small_batches_of_any_structure_are_joined_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (BatchSize(),))
    monkeypatch.setattr("etl.doctor.steps.TURN_SECONDS", 0.05)
    sizes = set()

    def step(batch: Any) -> None:
        sizes.add((len(batch["left"]), len(batch["target"])))
        time.sleep(0.02)  # the same for any number of records

    loader = torch.utils.data.DataLoader(Mappings(), batch_size=4)
    examination = examine(iterator=loader, step=step, batches=4, try_remedies=True)
    found = finding(examination, "batch_size")
    assert found.severity is Severity.SERIOUS
    assert found.trial is not None
    assert sizes == {(4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (128, 128)}


@pytest.mark.parametrize(
    ("batch", "step", "reason"),
    [
        ({"left": np.zeros((4, 3)), "name": list("abcd")}, pause, "larger batches cannot be made of {'left': float64"),
        ([np.zeros((4, 3))], lambda batch: batch[0].reshape(4, 3), "batches of more than 4 fail: ValueError: cannot"),
    ],
    ids=["text", "fixed size"],
)
def test_batches_that_cannot_be_made_larger_are_not_looked_at(
    batch: Any, step: Callable[[Any], Any], reason: str
) -> None:
    setup = StepSetup([batch] * 3, step)
    found = BatchSize().look(Case(quiet_machine(), setup, observe_training(None, setup, 2)))
    assert found.severity is Severity.NOT_LOOKED_AT
    assert found.found.startswith(reason)


def test_the_marks_of_repeated_records_are_left_out_of_joined_batches() -> None:
    marked = etl.Batch(np.zeros((2, 3)), None, repeated=np.array([False, True]))
    (joined,) = Rebatched([etl.Batch(np.zeros((2, 3)), None), marked], 2)
    assert (joined.features.shape, joined.labels, joined.repeated) == ((4, 3), None, None)


def test_an_error_of_a_step_is_raised_unchanged() -> None:
    class UnusualError(Exception):
        pass

    def step(batch: Any) -> None:
        raise UnusualError

    with pytest.raises(UnusualError):
        examine(iterator=Batches(), step=step)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"step": do_nothing}, "a step and an iterator"),
        ({"iterator": Batches()}, "a step and an iterator"),
        ({"iterator": Batches(), "step": do_nothing, "model": mlp(units=1)}, "no model, loss or backend"),
        ({"iterator": Batches(), "step": do_nothing, "loss": torch.nn.MSELoss()}, "no model, loss or backend"),
        ({"iterator": Batches(), "step": do_nothing, "backend": "cpu"}, "no model, loss or backend"),
        ({"iterator": [], "step": do_nothing}, "no batches"),
        ({"iterator": [object()], "step": do_nothing}, "a batch holds a builtins.object"),
    ],
)
def test_a_step_that_cannot_be_examined_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        examine(**arguments)


@pytest.mark.parametrize(
    ("device", "severity", "words"),
    [
        ("cpu", Severity.WARNING, "there is a GPU, and the training step did not use it through torch"),
        ("cuda:1", Severity.NOT_LOOKED_AT, "torch has initialised cuda:1 in this process"),
    ],
)
def test_a_gpu_beside_a_step_is_named_only_if_torch_did_not_use_it(
    device: str, severity: Severity, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("etl.doctor.checks.hardware.find_backend", lambda _: etl.backend("cpu"))
    need = MemoryNeed(peak_nbytes=1, data_nbytes=1, available_nbytes=1)
    observation = Observation(StepTimes(), 0, None, torch.device(device), [], 0, 0.0, need, None)
    found = BackendInUse().look(Case(quiet_machine(), StepSetup([], do_nothing), observation))
    assert found.severity is severity
    assert words in found.found
