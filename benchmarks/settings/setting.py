"""The settings that are tried, each against its default, and the workloads that they are tried on."""

from __future__ import annotations

import ctypes.util
import os
from dataclasses import dataclass, field, replace
from typing import Any

import etl
from benchmarks.cells import BACKENDS
from benchmarks.measuring.values import JsonValues

# The default against itself shows how far off a metric is by chance.
DEFAULT = "default"
RARE_SECONDS = 0.5
# By the name of the shared library.
ALLOCATORS = ("jemalloc", "tcmalloc_minimal", "mimalloc")
ALLOCATORS_HERE = tuple(name for name in ALLOCATORS if ctypes.util.find_library(name))
CPUS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Setting(JsonValues):
    """The runtime settings of a process.

    Attributes
    ----------
    garbage_collection, heap : str
        As `etl.runtime.GcPolicy` and `HeapPolicy` take them.
    allocator : str
        The default, or the library that is preloaded.
    threads : int
        As `etl.runtime.ThreadPolicy` takes it; 0 sets no policy, so that the libraries choose.
    dtype : str
        Of features and weights.
    device_memory : str
        As `etl.runtime.DeviceMemoryPolicy` takes it.
    """

    garbage_collection: str = DEFAULT
    heap: str = DEFAULT
    allocator: str = DEFAULT
    threads: int = 1
    dtype: str = "float32"
    device_memory: str = DEFAULT


@dataclass(frozen=True)
class SettingAxis:
    """Values of one field of `Setting`, each compared with `base` on each workload.

    Attributes
    ----------
    values, workloads : tuple of str
        Names of the values and of the workloads.
    field_values : dict
        Values of the field whose names are not the value itself.
    turn_seconds : float
        A turn is as many epochs as take this long, and at least one. Many short turns average out more than few long
        ones, but events of a few times a second have to occur in every turn.
    """

    values: tuple[str, ...]
    workloads: tuple[str, ...]
    base: Setting = Setting()
    field_values: dict[str, Any] = field(default_factory=dict)
    is_on_one_cpu: bool = True
    turn_seconds: float = 0.03

    @property
    def is_of_rare_events(self) -> bool:
        """True if the total time of all turns is compared, instead of that of the typical turn."""
        return self.turn_seconds >= RARE_SECONDS

    def at(self, name: str, value: str) -> Setting:
        """Return the base with the field `name` set to `value`."""
        return self.base if value == DEFAULT else replace(self.base, **{name: self.field_values.get(value, value)})


def on_backend(name: str, backend: str) -> str:
    """Return the name of the workload `name` on `backend`."""
    return f"{name}, {backend}"


TRAINING = on_backend("training", "cpu")
COMPUTE = tuple(on_backend(name, backend) for backend in BACKENDS for name in ("training", "product"))
TAKING_MEMORY = (TRAINING, "decoding", "new batches")

# The heap policy on the axes that do not vary it. Under glibc's own policy the same training took from 0.11 to 0.20 s,
# depending on the process.
QUIET_HEAP = "retain"

# By field of `Setting`.
AXES = {
    "garbage_collection": SettingAxis(
        (DEFAULT, "off", "freeze", "window:250", "thresholds:10000,10,10"),
        ("annotations", TRAINING),
        Setting(heap=QUIET_HEAP),
        turn_seconds=1.0,
    ),
    "heap": SettingAxis((DEFAULT, "retain", "preallocate:256MB", "limit:64GB"), TAKING_MEMORY),
    "allocator": SettingAxis((DEFAULT, *ALLOCATORS_HERE), TAKING_MEMORY),
    "threads": SettingAxis(
        (DEFAULT, "1", "all CPUs", "twice the CPUs"),
        (TRAINING, "training beside decoding"),
        Setting(heap=QUIET_HEAP, threads=0),
        {"1": 1, "all CPUs": CPUS, "twice the CPUs": 2 * CPUS},
        is_on_one_cpu=False,
    ),
    "dtype": SettingAxis((DEFAULT, "float16", "bfloat16", "float64"), COMPUTE, Setting(heap=QUIET_HEAP)),
}
if "cuda" in BACKENDS:  # a suite whose values are all n/a would be a blank chart
    AXES["device_memory"] = SettingAxis(
        (DEFAULT, "expandable_segments:True", "max_split_size_mb:128", "per_process_memory_fraction:0.9"),
        (on_backend("training", "cuda"),),
        Setting(heap=QUIET_HEAP),
    )


def unsupported_reason(setting: Setting) -> str:
    """Return what the installed commit lacks for `setting`, or an empty string."""
    if not hasattr(etl.runtime, "batch_boundary"):
        return "there are no batch boundaries at this commit"
    try:
        etl.runtime.GcPolicy(setting.garbage_collection)
        etl.runtime.HeapPolicy(setting.heap)
    except ValueError as error:
        return str(error)
    if setting.device_memory != DEFAULT and not hasattr(etl.runtime, "DeviceMemoryPolicy"):
        return "there is no policy for device memory at this commit"
    return ""
