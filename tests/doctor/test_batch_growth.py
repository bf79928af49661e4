"""The doctor makes batches larger until memory, time or throughput ends, and says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import pytest
import torch

from etl.doctor import Finding, Severity, examine
from etl.doctor.check import Case
from etl.doctor.checks import batch_size
from etl.doctor.checks.batch_size import BatchSize
from etl.doctor.observation import observe_training
from etl.doctor.setup import StepSetup
from etl.loading.batch import Batch
from tests.doctor_cases import CLASSES, FEATURES, look, quiet_machine

# Seconds of a step by the number of its records.
Seconds = Callable[[int], float]
SetSeconds = Callable[[Seconds], None]


class Limited(torch.nn.Module):
    """A model that fails for batches of more than some records."""

    def __init__(self, limit: int, error: type[Exception]) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(FEATURES, CLASSES)
        self.limit, self.error = limit, error

    def forward(self, features: torch.Tensor) -> Any:
        if len(features) > self.limit:
            raise self.error("no room")
        return self.dense(features)


class Growing:
    """A meter that shows more memory whenever it is read."""

    readings: Iterator[int] = iter(range(1, 1000))

    def __init__(self) -> None:
        self.nbytes = next(self.readings)

    def look(self) -> None:
        """Do nothing: the reading is taken when the meter is made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> SetSeconds:
    """A function that replaces the clock: steps take as long as it is told."""

    def set_seconds(seconds: Seconds) -> None:
        def of_step(step: Callable[[Any], None], batch: Any) -> float:
            step(batch)
            return seconds(batch.records)

        def in_turns(_: Any, batches: Sequence[Any]) -> list[float]:
            return [seconds(batch.records) for batch in batches]

        monkeypatch.setattr(batch_size, "_seconds_of", of_step)
        monkeypatch.setattr(batch_size, "time_compute", in_turns)

    return set_seconds


def of(size: int, model: torch.nn.Module | None = None) -> Finding:
    batch = Batch(np.zeros((size, FEATURES), np.float32), np.zeros(size, np.int64))
    return look(BatchSize(), model or torch.nn.Linear(FEATURES, CLASSES), [batch] * 4)


def constant(_: int) -> float:
    return 0.003


def test_a_step_that_takes_as_long_for_more_records_is_worth_larger_batches(take: SetSeconds) -> None:
    take(constant)
    found = of(32)
    assert found.severity is Severity.NOTE
    assert found.found == "batches of 32 records are computed slower than larger ones"
    assert "takes 3.00 ms, and 3.00 ms with 32 times the records: 0.03 times as long for each" in found.evidence
    assert "batches of more than 1,024 records are not usual" in found.evidence
    assert str(found.remedy).startswith("try batch_size=1024, and check that the loss falls as fast")
    assert found.saves_seconds is None


def test_throughput_ends_where_a_record_takes_as_long_in_larger_batches(take: SetSeconds) -> None:
    take(lambda records: 0.001 * records)
    found = of(32)
    assert found.severity is Severity.FINE
    assert found.evidence == "32 to 128 are usual; a record takes as long in batches of twice as many"
    take(lambda records: 0.001 * max(records, 128))
    found = of(32)
    assert found.severity is Severity.NOTE
    assert "with 4 times the records: 0.25 times" in found.evidence


def test_time_ends_before_a_step_takes_minutes(take: SetSeconds) -> None:
    take(lambda records: 0.4 + 0.002 * records)
    found = of(32)
    assert "with 2 times the records" in found.evidence
    assert "a step takes more than 0.5 s" in found.evidence


def test_memory_ends_on_a_device_that_has_no_more(take: SetSeconds) -> None:
    take(constant)
    found = of(32, Limited(100, torch.cuda.OutOfMemoryError))
    assert found.severity is Severity.NOTE
    assert "the device has too little memory for twice as many records" in found.evidence
    assert str(found.remedy).startswith("try batch_size=64")


def test_an_error_of_a_larger_batch_keeps_what_smaller_ones_gained(take: SetSeconds) -> None:
    take(constant)
    found = of(32, Limited(256, RuntimeError))
    assert "batches of more than 256 fail: RuntimeError: no room" in found.evidence
    assert str(found.remedy).startswith("try batch_size=256")


def test_memory_ends_on_the_host_at_a_quarter_of_what_is_free(
    take: SetSeconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(constant)
    monkeypatch.setattr(batch_size, "available_nbytes", lambda: 0)
    monkeypatch.setattr(batch_size, "PeakMemory", Growing)
    found = of(32)
    assert found.severity is Severity.FINE
    assert "a step with twice as many records takes more than a quarter of the free memory" in found.evidence


def test_small_batches_grow_to_the_usual_sizes_only(take: SetSeconds) -> None:
    take(constant)
    found = of(8)
    assert found.severity is Severity.SERIOUS
    assert "with 16 times the records" in found.evidence
    assert str(found.remedy).startswith("batch_size=32 to 128, if memory allows")


def test_batches_of_thousands_of_records() -> None:
    found = of(2000)
    assert (found.severity, found.found) == (Severity.NOTE, "batches of 2,000 records, more than 1,024")
    assert "batches of more than 1,024 records are not usual" in of(600).evidence


def test_a_step_that_keeps_what_it_learns_gets_no_larger_batches_than_it_is_used_to() -> None:
    sizes = set()
    setup = StepSetup([np.zeros((32, 3))] * 4, lambda batch: sizes.add(len(batch)))
    found = BatchSize().look(Case(quiet_machine(), setup, observe_training(None, setup, 2)))
    assert sizes == {32}
    assert found.severity is Severity.FINE
    assert "a step of your own, which would learn from repeated records" in found.evidence


def test_a_suggestion_that_is_tried_promises_no_saving(take: SetSeconds, monkeypatch: pytest.MonkeyPatch) -> None:
    take(constant)
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (BatchSize(),))
    monkeypatch.setattr("etl.doctor.steps.TURN_SECONDS", 0.01)
    batch = Batch(np.zeros((32, FEATURES), np.float32), np.zeros(32, np.int64))
    model = torch.nn.Linear(FEATURES, CLASSES)
    (found,) = examine(model, [batch] * 64, backend="cpu", batches=2, try_remedies=True).findings
    assert found.trial is not None
    assert found.saves_seconds is None


def test_a_smaller_last_batch_is_not_taken_for_the_others() -> None:
    setup = StepSetup([np.zeros((32, 3)), np.zeros((32, 3)), np.zeros((5, 3))], lambda batch: None)
    assert len(observe_training(None, setup, 3).batch) == 32
