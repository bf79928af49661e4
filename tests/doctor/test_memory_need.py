"""The doctor says how much memory a training needs and how much to allow it, and finds fragmented device memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from etl.doctor import Severity, examine
from etl.doctor.check import Case
from etl.doctor.checks.memory import MemoryReuse
from etl.doctor.memory_need import MemoryNeed, look_at_memory
from etl.doctor.observation import DeviceMemory, observe_training
from etl.doctor.setup import make_setup
from etl.runtime import DeviceMemoryPolicy, HeapPolicy
from etl.training.backends import backend
from tests.doctor_cases import Batches, finding, mlp, quiet_machine

GB = 10**9
FULL = DeviceMemory(retries=0, new_segments=0, reserved_nbytes=GB, allocated_nbytes=GB, unusable_nbytes=0)


def test_the_peak_counts_memory_that_is_free_again() -> None:
    before = look_at_memory()
    block = np.ones(before.peak_nbytes - psutil.Process().memory_info().rss + 200_000_000, np.uint8)
    del block
    after = look_at_memory()
    assert after.peak_nbytes >= before.peak_nbytes + 150_000_000
    assert after.allow_nbytes == pytest.approx(1.25 * after.peak_nbytes)
    assert not after.is_tight


def test_the_advised_limit_can_be_put_in_force() -> None:
    text = str(look_at_memory())
    policy = text.partition("HeapPolicy('")[2].partition("'")[0]
    with HeapPolicy(policy) as active:
        assert not active.audit().is_inert


def test_too_little_memory_is_tight() -> None:
    need = MemoryNeed(peak_nbytes=8 * GB, data_nbytes=9 * GB, available_nbytes=GB)
    assert need.is_tight
    assert str(need).startswith(
        "8.0 GB at the peak, and 1.0 GB are left. Allow it 10.0 GB, as the limit of a container"
    )
    assert "HeapPolicy('limit:11.2GB')" in str(need)


def test_an_examination_has_the_memory_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.doctor.examination.CHECKS", ())
    examination = examine(mlp(), Batches(), backend="cpu", batches=2)
    assert examination.memory is not None
    assert examination.as_dict()["memory"]["allow_nbytes"] > examination.memory.peak_nbytes > 50_000_000
    assert "memory: " in str(examination)


@pytest.fixture(scope="module")
def case() -> Case:
    """A healthy training on the CPU."""
    setup = make_setup(mlp(), Batches(), backend("cpu"), None)
    with HeapPolicy("retain"):
        return Case(quiet_machine(), setup, observe_training(None, setup, 4))


def with_device_memory(case: Case, **more: int) -> Case:
    """Return the case with a device whose memory was used like `FULL`, but for `more`."""
    assert case.observation is not None
    return replace(case, observation=replace(case.observation, device_memory=replace(FULL, **more)))


@pytest.mark.parametrize(
    ("more", "severity", "words"),
    [
        ({}, Severity.FINE, "0 retries, 0 new segments; 1,000 MB held, of which 1,000 MB are tensors"),
        ({}, Severity.FINE, "minor page faults per batch"),
        ({"retries": 3}, Severity.SERIOUS, "device memory ran out 3 times, and each time all free memory was given"),
        ({"retries": 3}, Severity.SERIOUS, "smaller batches"),
        ({"new_segments": 8}, Severity.WARNING, "device memory is taken from the driver again and again"),
        ({"unusable_nbytes": GB // 2}, Severity.WARNING, "device memory is fragmented"),
        ({"unusable_nbytes": GB // 2}, Severity.WARNING, "50% free pieces that cannot be given back"),
        ({"reserved_nbytes": 4_000_000, "unusable_nbytes": 2_000_000}, Severity.FINE, "device memory is reused"),
    ],
)
def test_what_is_found_of_device_memory(case: Case, more: dict[str, int], severity: Severity, words: str) -> None:
    found = MemoryReuse().look(with_device_memory(case, **more))
    assert found.severity is severity
    assert words in f"{found.found}; {found.evidence}; {found.remedy}"


def test_fragmented_device_memory_is_tried_with_growing_segments(case: Case) -> None:
    fragmented = with_device_memory(case, unusable_nbytes=GB // 2)
    assert "expandable_segments:True" in str(MemoryReuse().look(fragmented).remedy)
    assert fragmented.setup is not None
    (setting,) = MemoryReuse().apply(fragmented.setup, fragmented).settings
    policy = setting()
    assert isinstance(policy, DeviceMemoryPolicy)
    assert policy.policy == "expandable_segments:True"


def test_counts_are_those_of_the_measured_batches() -> None:
    before = {"num_alloc_retries": 1, "segment.all.allocated": 10}
    after = {
        "num_alloc_retries": 3,
        "segment.all.allocated": 15,
        "reserved_bytes.all.current": 7,
        "allocated_bytes.all.current": 5,
        "inactive_split_bytes.all.current": 1,
    }
    assert DeviceMemory.between(before, after) == DeviceMemory(2, 5, 7, 5, 1)
    assert DeviceMemory.between({}, {}) is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_allocator_of_a_real_device_is_observed() -> None:
    setup = make_setup(mlp(), Batches(), backend("cuda"), None)
    observation = observe_training(None, setup, 4)
    assert observation.device_memory is not None
    assert observation.device_memory.retries == 0
    assert 0 < observation.device_memory.allocated_nbytes <= observation.device_memory.reserved_nbytes
    kernels = finding(examine(mlp(), Batches(), backend="cuda", batches=2), "kernels")
    assert "cuDNN" in kernels.found
