"""The machine, what is installed on it, and other processes that use its CPUs."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from etl.doctor.gpus import Gpus, look_at_gpus
from etl.doctor.rank import other_ranks, shares_cpus
from etl.measuring.noise import NoiseWatch
from etl.runtime.resources import available_cores, available_cpus, cgroup_quota

CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/gpus")
# Optional packages, and what is slower or missing without them.
OPTIONAL = {
    "numba": "compiled loops to cast, normalise and store in one pass (numpy: 3.4 times as long in benchmarks.gather)",
    "simplejpeg": "decoder='turbo'",
    "cv2": "resizing for decoder='turbo'",
}
# Environment variables that choose backends, threads and kernels.
VARIABLE = re.compile(r"BACKEND_PRIORITY_|OMP_|MKL_|OPENBLAS_|ATEN_CPU_|KMP_|GOMP_|DNNL_|ONEDNN_|CUDA_VISIBLE_|TORCH_")


@dataclass(frozen=True)
class OtherProcess:
    """Another process, and how many CPUs it used on average."""

    pid: int
    name: str
    cpus: float


@dataclass(frozen=True)
class Machine:
    """The machine and the installation.

    Attributes
    ----------
    cpus : int
        CPUs that this process may use.
    cores : int or None
        Physical cores that this process may use; None if unknown.
    variables : mapping of str to str
        Environment variables that choose backends, threads and kernels.
    missing : tuple of str
        Optional packages that are not installed.
    watched_seconds : float
        Seconds in which other processes were watched and this process was idle.
    steal, other_processes : float
        Shares of the time of the CPUs of this process that the hypervisor and other processes took. Other ranks of
        the same training, and their workers, do not count.
    busy_processes : tuple of OtherProcess
        The other processes that used a tenth of a CPU or more, the busiest first.
    nvidia_gpus : int
        Number of GPUs that the NVIDIA driver shows, which may be more than torch can use.
    gpus : Gpus
        The GPUs and their use at the end of these seconds.
    cpu_quota : float or None
        CPUs that the control groups around this process allow; None if none of them sets a limit.
    throttled : float
        Share of the periods of that quota in which it was used up while training was observed.
    """

    cpus: int
    cores: int | None
    cpu_name: str
    extensions: frozenset[str]
    variables: Mapping[str, str]
    missing: tuple[str, ...]
    watched_seconds: float
    steal: float
    other_processes: float
    busy_processes: tuple[OtherProcess, ...]
    nvidia_gpus: int
    gpus: Gpus
    cpu_quota: float | None = None
    throttled: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the machine as JSON values. Of its extensions, only those for vectors are included."""
        return {
            "cpus": self.cpus,
            "cores": self.cores,
            "cpu": self.cpu_name,
            "extensions": sorted(each for each in self.extensions if each.startswith(("avx", "amx", "sse4"))),
            "variables": dict(self.variables),
            "missing": list(self.missing),
            "watched_seconds": self.watched_seconds,
            "steal": self.steal,
            "others": self.other_processes,
            "processes": [vars(each) for each in self.busy_processes],
            "nvidia_gpus": self.nvidia_gpus,
            "gpus": [asdict(each) for each in self.gpus.found],
            "cpu_quota": self.cpu_quota,
            "throttled": self.throttled,
            "python": platform.python_version(),
        }


def look_at_machine(seconds: float = 1.0) -> Machine:
    """Describe the machine, and watch other processes for `seconds`. This process should be idle meanwhile."""
    name, extensions = _cpu()
    ranks = _with_children(other_ranks())
    cpus, quota = os.sched_getaffinity(0), cgroup_quota()
    beside = [each for each in ranks if shares_cpus(each, cpus)]
    used = _cpu_seconds(beside)
    started = time.perf_counter()
    with NoiseWatch() as noise:
        busy = _busy_processes(seconds, ranks)
    used = max(0.0, _cpu_seconds(beside) - used)
    available = (time.perf_counter() - started) * len(cpus)
    of_quota = sum(each.cpus for each in busy if _control_groups(each.pid) == _control_groups("self"))
    return Machine(
        cpus=available_cpus(),
        cores=available_cores(),
        cpu_name=name,
        extensions=extensions,
        variables={key: value for key, value in sorted(os.environ.items()) if VARIABLE.match(key)},
        missing=tuple(each for each in OPTIONAL if importlib.util.find_spec(each) is None),
        watched_seconds=seconds,
        steal=noise.steal,
        other_processes=_taken(noise.other_processes - used / available, len(cpus), quota, of_quota),
        busy_processes=busy,
        nvidia_gpus=len(list(NVIDIA_DRIVER.iterdir())) if NVIDIA_DRIVER.is_dir() else 0,
        gpus=look_at_gpus({each.pid for each in _with_children([psutil.Process(), *ranks])}),
        cpu_quota=quota,
    )


def _taken(share: float, cpus: int, quota: float | None, of_quota: float) -> float:
    """Return the share that others took of the CPUs that this process may use, if they used `share` of `cpus` CPUs.

    A quota allows fewer than these, so others may have left enough of them free. But those in the same control groups
    used `of_quota` CPUs of it.
    """
    usable, free = float(cpus), cpus * (1 - max(0.0, min(share, 1.0)))
    if quota is not None:
        usable, free = min(usable, quota), min(free, quota - of_quota)
    return min(1.0, max(0.0, usable - free) / usable)


def _control_groups(process: int | str) -> str:
    try:
        return Path(f"/proc/{process}/cgroup").read_text()
    except OSError:  # it has ended
        return ""


def _with_children(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = list(processes)
    for each in processes:
        with suppress(psutil.Error):  # it has ended
            found += each.children(recursive=True)
    return found


def _busy_processes(seconds: float, ranks: list[psutil.Process]) -> tuple[OtherProcess, ...]:
    """Watch for `seconds`, and return the other processes that used a tenth of a CPU or more, the busiest first."""
    own = {each.pid for each in (*_with_children([psutil.Process()]), *ranks)}
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            each.cpu_percent()  # psutil keeps the process, and measures from here on
    time.sleep(seconds)
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended
            cpus = each.cpu_percent() / 100
            if cpus >= 0.1 and each.pid not in own:
                found.append(OtherProcess(each.pid, each.name(), cpus))
    return tuple(sorted(found, key=lambda each: -each.cpus))


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time that `processes` have used; those that have ended do not count."""
    used = 0.0
    for each in processes:
        with suppress(psutil.Error):
            times = each.cpu_times()
            used += times.user + times.system
    return used


def _cpu() -> tuple[str, frozenset[str]]:
    """Return the name of the first CPU, and its extensions: Linux lists them as "flags", or on ARM as "Features"."""
    name, extensions = platform.processor() or platform.machine(), frozenset[str]()
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return name, extensions
    for line in lines:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            return name, frozenset(value.split())
    return name, extensions
