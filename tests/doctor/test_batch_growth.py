"""The doctor makes batches larger until memory, time or throughput ends, and says which."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from etl.doctor import Finding, Severity
from etl.doctor.check import Case
from etl.doctor.checks import batch_size
from etl.doctor.checks.batch_size import BatchSize
from etl.doctor.observation import observe_training
from etl.doctor.setup import StepSetup
from tests.doctor_cases import quiet_machine

Step = Callable[[np.ndarray], Any]


def of(step: Step, size: int) -> Finding:
    setup = StepSetup([np.zeros((size, 3))] * 4, step)
    return BatchSize().look(Case(quiet_machine(), setup, observe_training(None, setup, 2)))


def test_a_step_that_takes_as_long_for_more_records_is_worth_larger_batches() -> None:
    found = of(lambda batch: time.sleep(0.003), 32)
    assert found.severity is Severity.NOTE
    assert found.found == "batches of 32 records are computed slower than larger ones"
    assert "with 32 times the records: 0.0" in found.evidence
    assert "batches have more than 1,024 records, which is not usual" in found.evidence
    assert str(found.remedy).startswith("try batch_size=1024, and check that the loss falls as fast")
    assert found.saves_seconds is None


def test_throughput_ends_where_a_record_takes_as_long_in_larger_batches() -> None:
    found = of(lambda batch: time.sleep(0.0002 * len(batch)), 32)
    assert found.severity is Severity.FINE
    assert "32 to 128 are usual; batches of more than 32 are of no use: a record takes as long" in found.evidence


def test_time_ends_before_a_step_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "MAX_STEP_SECONDS", 0.01)
    found = of(lambda batch: time.sleep(0.008 + 0.0001 * len(batch)), 32)
    assert "with 2 times the records" in found.evidence
    assert "a step takes more than 0.01 s" in found.evidence


def test_memory_ends_on_a_device_that_has_no_more() -> None:
    def step(batch: np.ndarray) -> None:
        if len(batch) > 100:
            raise torch.cuda.OutOfMemoryError("out of memory")
        time.sleep(0.003)

    found = of(step, 32)
    assert found.severity is Severity.NOTE
    assert "beyond that, the device has too little memory" in found.evidence
    assert str(found.remedy).startswith("try batch_size=64")


def test_memory_ends_on_the_host_at_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr(batch_size, "_peak_nbytes", lambda: next(peaks))
    monkeypatch.setattr(batch_size, "available_nbytes", lambda: 2 * 10**9)
    found = of(lambda batch: time.sleep(0.003), 32)
    assert "a step takes more than a quarter of the free memory" in found.evidence
    assert found.severity is Severity.FINE


def test_small_batches_grow_to_the_usual_sizes_only() -> None:
    found = of(lambda batch: time.sleep(0.003), 8)
    assert found.severity is Severity.SERIOUS
    assert "with 16 times the records" in found.evidence
    assert str(found.remedy).startswith("batch_size=32 to 128, if memory allows")


def test_batches_of_thousands_of_records() -> None:
    found = of(lambda batch: time.sleep(0.003), 2000)
    assert (found.severity, found.found) == (Severity.NOTE, "batches of 2,000 records, more than 1,024")


def test_a_smaller_last_batch_is_not_taken_for_the_others() -> None:
    setup = StepSetup([np.zeros((32, 3)), np.zeros((32, 3)), np.zeros((5, 3))], lambda batch: None)
    assert len(observe_training(None, setup, 3).batch) == 32
