"""`DeviceMemoryPolicy` gives settings to torch's allocators, takes them back, and notices settings without effect.

torch without CUDA keeps the settings, too, so they are read back from torch itself. The memory that they are for is
simulated; on a CUDA device the same claims are made of the real one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import etl
from etl.runtime import DeviceMemoryPolicy, device_memory_policy
from etl.runtime.device_memory_policy import MIB, VARIABLE, variables_of
from etl.training import FitResult
from tests.programs import output_of

TOTAL_NBYTES = 1000 * MIB
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def in_force() -> str:
    text: str = torch._C._accelerator_getAllocatorSettings()  # type: ignore[attr-defined]
    return text


@dataclass
class SimulatedMemory:
    """A caching allocator that obeys the settings that torch holds, or ignores them.

    Attributes
    ----------
    obeys : bool
        Obey the settings.
    share : float
        Share of the memory that may be taken, as torch keeps it: a whole number of bytes.
    segments : list of dict
        Segments, as `torch.cuda.memory_snapshot` returns them.
    free : list of (int, int)
        Address and size of free blocks.
    """

    obeys: bool = True
    share: float = 1.0
    segments: list[dict[str, Any]] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)

    def take(self, _torch: Any, _device: int, nbytes: int) -> Any:
        if self.obeys and nbytes > self.share * TOTAL_NBYTES:
            return None
        limit = self.setting("max_split_size_mb")
        for address, size in self.free:
            if size >= nbytes and not (self.obeys and limit and size > int(limit) * MIB):
                return _Block(self, address, nbytes)
        grows = self.obeys and self.setting("expandable_segments") == "True"
        address = sum(each["total_size"] for each in self.segments)
        self.segments.append({"address": address, "total_size": nbytes, "is_expandable": grows})
        return _Block(self, address, nbytes)

    def set_share(self, share: float, device: int) -> None:
        self.share = math.floor(share * TOTAL_NBYTES) / TOTAL_NBYTES if self.obeys else 1.0

    def setting(self, name: str) -> str | None:
        return dict(pair.split(":") for pair in in_force().split(",") if pair).get(name)


class _Block:
    def __init__(self, memory: SimulatedMemory, address: int, nbytes: int) -> None:
        self.memory, self.address, self.nbytes = memory, address, nbytes

    def data_ptr(self) -> int:
        return self.address

    def __del__(self) -> None:
        self.memory.free.append((self.address, self.nbytes))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMemory]:
    """A simulated CUDA device; torch's settings are as before afterwards."""
    simulated = SimulatedMemory()
    functions = {
        "is_available": lambda: True,
        "get_allocator_backend": lambda: "native",
        "empty_cache": simulated.free.clear,
        "memory_snapshot": lambda: list(simulated.segments),
        "mem_get_info": lambda _: (TOTAL_NBYTES, TOTAL_NBYTES),
        "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(total_memory=TOTAL_NBYTES),
        "get_per_process_memory_fraction": lambda _: simulated.share,
        "set_per_process_memory_fraction": simulated.set_share,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(device_memory_policy, "_take", simulated.take)
    before = in_force()
    yield simulated
    torch._C._accelerator_setAllocatorSettings(before)  # type: ignore[attr-defined]


def test_settings_are_in_force_inside_the_block_and_not_after_it(memory: SimulatedMemory) -> None:
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.5")  # type: ignore[attr-defined]
    with DeviceMemoryPolicy("expandable_segments:True,per_process_memory_fraction:0.5"):
        assert in_force() == "garbage_collection_threshold:0.5,expandable_segments:True"
        assert memory.share == 0.5
        with DeviceMemoryPolicy("max_split_size_mb:128"):
            assert in_force().endswith("expandable_segments:True,max_split_size_mb:128")
        assert in_force().endswith("expandable_segments:True")
    # torch resets the size by itself, but not the segments.
    assert in_force() == "expandable_segments:False,garbage_collection_threshold:0.5"
    assert memory.share == 1.0


def test_settings_that_it_does_not_know_are_kept(memory: SimulatedMemory) -> None:
    # A list has commas of its own.
    former = "roundup_power2_divisions:[256:1,512:2,>:4],max_non_split_rounding_mb:30"
    torch._C._accelerator_setAllocatorSettings(former)  # type: ignore[attr-defined]
    with DeviceMemoryPolicy("roundup_power2_divisions:8") as active:
        assert in_force() == f"{former},roundup_power2_divisions:8"
        assert not active.audit().is_inert
    assert in_force() == former


def test_the_audit_reports_what_became_of_blocks(memory: SimulatedMemory) -> None:
    policy = "max_split_size_mb:32,per_process_memory_fraction:0.25,garbage_collection_threshold:0.8"
    with DeviceMemoryPolicy(policy) as active:
        audit = active.audit()
    assert not audit.is_inert
    assert audit.setting == "device memory"
    assert audit.requested == policy
    assert set(audit.in_force.split(",")) == set(policy.split(","))
    assert audit.effect == "a free block of 67,108,864 bytes is not split; 263,192,576 bytes are refused"
    with DeviceMemoryPolicy("expandable_segments:True") as active:
        assert active.audit().effect == "a new segment can grow"


@pytest.mark.parametrize("share", ["0.80", ".9", "0.3333333", "1"])
def test_a_share_is_in_force_however_it_is_written(memory: SimulatedMemory, share: str) -> None:
    with DeviceMemoryPolicy(f"per_process_memory_fraction:{share}") as active:
        assert not active.audit().is_inert


def test_what_cannot_be_observed_is_neither_called_in_force_nor_inert(memory: SimulatedMemory) -> None:
    with DeviceMemoryPolicy("max_split_size_mb:900") as active:
        audit = active.audit()
    assert not audit.is_inert
    assert audit.effect == "no new block of 1,887,436,800 bytes could be had, so splitting was not observed"
    memory.share = 0.0  # nothing more is given out
    with DeviceMemoryPolicy("expandable_segments:True") as active:
        assert active.audit().effect == "no new segment was needed, so its growth was not observed"


def test_settings_that_the_backend_ignores_raise_an_alarm(
    memory: SimulatedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with DeviceMemoryPolicy("backend:cudaMallocAsync,max_split_size_mb:64") as active:
        assert "the backend cudaMallocAsync ignores max_split_size_mb" in active.audit().alarm


def test_a_threshold_without_a_limit_raises_an_alarm(memory: SimulatedMemory) -> None:
    with DeviceMemoryPolicy("garbage_collection_threshold:0.5") as active:
        assert "counts only below a per_process_memory_fraction that is less than 1" in active.audit().alarm


def test_the_limit_of_the_device_that_was_current_on_entering_is_restored(
    memory: SimulatedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: dict[int, float] = {}
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.update({device: share})
    )
    with DeviceMemoryPolicy("per_process_memory_fraction:0.5"):
        assert shares == {0: 0.5}
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert shares == {0: 1.0}


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        ("expandable_segments:True", "a new segment cannot grow"),
        ("max_split_size_mb:32", "a free block of 67,108,864 bytes is split"),
        ("per_process_memory_fraction:0.25", "per_process_memory_fraction:0.25 is not in force any more"),
    ],
)
def test_a_setting_that_does_nothing_raises_an_alarm(memory: SimulatedMemory, policy: str, seen: str) -> None:
    memory.obeys = False
    with DeviceMemoryPolicy(policy) as active:
        audit = active.audit()
    assert audit.is_inert
    assert seen in audit.alarm


def test_settings_that_other_code_has_changed_raise_an_alarm(memory: SimulatedMemory) -> None:
    with DeviceMemoryPolicy("expandable_segments:True") as active:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")  # type: ignore[attr-defined]
        alarm = active.audit().alarm
    assert "expandable_segments:True is not in force any more" in alarm
    assert "other code has changed torch's settings since" in alarm


def test_the_backend_cannot_be_changed_once_torch_is_loaded(memory: SimulatedMemory) -> None:
    with pytest.raises(RuntimeError, match="start Python with PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"):
        DeviceMemoryPolicy("backend:cudaMallocAsync").__enter__()
    with DeviceMemoryPolicy("backend:native") as active:
        assert not active.audit().is_inert


def test_the_variable_for_a_process_keeps_the_settings_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "backend:native,expandable_segments:True")
    assert variables_of("backend:cudaMallocAsync,max_split_size_mb:64") == {
        VARIABLE: "backend:cudaMallocAsync,expandable_segments:True"
    }
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")  # torch would not read it beside the other one
    assert variables_of("backend:native") == {VARIABLE: "backend:native,max_split_size_mb:64"}
    assert variables_of("max_split_size_mb:64") == variables_of("default") == {}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("retain", "'retain' is not a setting; settings are default, or name:value with backend, per_process"),
        ("nonsense:1", "'nonsense:1' is not a setting"),
        ("expandable_segments:maybe", "expandable_segments must be True or False, not 'maybe'"),
        ("max_split_size_mb:3", "max_split_size_mb must be 20 or more whole MiB, not '3'"),
        ("per_process_memory_fraction:2", "per_process_memory_fraction must be a share above 0, and at most 1, not"),
        ("per_process_memory_fraction:nan", "must be a share above 0"),
        ("backend:malloc", "backend must be native or cudaMallocAsync, not 'malloc'"),
        ("backend:native,backend:native", "backend is given twice"),
        ("expandable_segments:True,max_split_size_mb:64", "max_split_size_mb has no effect on segments that grow"),
        ("pinned_num_register_threads:3", "pinned_num_register_threads must be a power of 2, not '3'"),
    ],
)
def test_a_wrong_policy_is_an_error_that_names_it(policy: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        DeviceMemoryPolicy(policy)
    assert repr(policy) in str(caught.value)


def test_a_machine_without_a_device_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(RuntimeError, match="is for CUDA devices: no CUDA device here"):
        DeviceMemoryPolicy("expandable_segments:True").__enter__()


def fit(backend: str, policy: str) -> FitResult:
    batches = [(torch.ones(4, 2), torch.ones(4, 1))]
    loss = torch.nn.functional.mse_loss
    return etl.fit(torch.nn.Linear(2, 1), batches, backend=backend, loss=loss, device_memory=policy)


def test_a_training_on_the_cpu_has_no_device_memory(memory: SimulatedMemory) -> None:
    with pytest.raises(RuntimeError, match="compute is on cpu"):
        fit("cpu", "max_split_size_mb:64")


@pytest.mark.cuda
@needs_cuda
def test_fit_configures_the_device_and_audits_it() -> None:
    (audit,) = fit("cuda", "expandable_segments:True,per_process_memory_fraction:0.5").settings
    assert not audit.is_inert, audit.alarm
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


@pytest.mark.cuda
@needs_cuda
def test_a_policy_chooses_the_backend_before_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
from etl.runtime import DeviceMemoryPolicy
with DeviceMemoryPolicy("backend:cudaMallocAsync") as active:
    print(active.audit().in_force)
"""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert output_of("-c", code).strip() == "backend:cudaMallocAsync"
