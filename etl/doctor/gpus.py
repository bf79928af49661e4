"""The NVIDIA GPUs of the machine, and who uses them, as NVML reports it."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    # In a container it may be that of the host.
    pid: int
    # "unknown" if it cannot be seen from here.
    name: str
    # Of device memory that it holds; 0 if the driver does not say.
    nbytes: int


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes
    ----------
    uuid, name : str
        Identifier, without the prefix "GPU-", and name of the device.
    busy : float
        Share of the last sampling period, a sixth of a second to a second, in which a kernel ran.
    used_nbytes, total_nbytes : int
        Bytes of device memory: in use by any process, and all.
    other_processes : tuple of GpuProcess
        Processes that compute on it, this one and its ranks excepted, the one with the most memory first.
    lists_own : bool
        True if this process or one of its ranks is among the processes that NVML lists. In a container it never is.
    """

    uuid: str
    name: str
    busy: float
    used_nbytes: int
    total_nbytes: int
    other_processes: tuple[GpuProcess, ...]
    lists_own: bool = False


@dataclass(frozen=True)
class Gpus:
    """All GPUs that NVML reports, or the reason why they are unknown."""

    found: tuple[Gpu, ...] = ()
    unknown: str = ""


def look_at_gpus(own: Collection[int]) -> Gpus:
    """Return the GPUs. This process should not compute on them meanwhile."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Gpus(unknown="nvidia-ml-py is not installed: pip install 'fair-etl[doctor]'")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Gpus(unknown=f"NVML: {error}")
    try:
        return Gpus(tuple(_look(nvml, number, own) for number in range(nvml.nvmlDeviceGetCount())))
    except nvml.NVMLError as error:
        return Gpus(unknown=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _look(nvml: Any, number: int, own: Collection[int]) -> Gpu:
    device = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    others = [
        GpuProcess(each.pid, _name_of(each.pid), each.usedGpuMemory or 0) for each in processes if each.pid not in own
    ]
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(device).removeprefix("GPU-"),
        name=nvml.nvmlDeviceGetName(device),
        busy=nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
        used_nbytes=memory.used,
        total_nbytes=memory.total,
        other_processes=tuple(sorted(others, key=lambda each: -each.nbytes)),
        lists_own=len(others) < len(processes),
    )


def _name_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "unknown"
