"""A machine to examine that is the same in all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.runtime import GcPolicy, ThreadPolicy
from etl.runtime.resources import available_cpus
from tests.doctor_cases import quiet_machine


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide other processes from examinations."""
    monkeypatch.setattr("etl.doctor.examination.look_at_machine", quiet_machine)


@pytest.fixture
def alone() -> Iterator[None]:
    """Hide the objects of other tests; compute with as many threads as there are CPUs."""
    with ThreadPolicy(available_cpus()), GcPolicy("freeze"):
        yield
