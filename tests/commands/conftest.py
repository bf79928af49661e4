"""A quick `etl doctor`."""

from __future__ import annotations

import pytest

from tests.doctor_cases import quiet_machine


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide other processes from the doctor, and let what it times take no longer than it must."""
    monkeypatch.setattr("etl.doctor.examination.look_at_machine", quiet_machine)
    monkeypatch.setattr("etl.doctor.stage_times.SECONDS", 0.05)
    monkeypatch.setattr("etl.doctor.steps.TURN_SECONDS", 0.01)
    monkeypatch.setattr("etl.doctor.steps.TRIAL_SECONDS", 0.02)
