"""The machine and the versions that figures belong to."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import psutil

from etl.measuring.instruments import instruments
from etl.measuring.noise import frequencies
from etl.runtime.resources import available_cpus, cgroup_quota

PACKAGES = ("fair-etl", "numpy", "torch", "h5py", "pillow", "joblib", "numba", "simplejpeg", "opencv-python-headless")


def describe_machine() -> dict[str, Any]:
    """What it is, as JSON values: `cpus` are those that this process may use, `memory_nbytes` all that there is."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": available_cpus(),
        "cpus_of_the_machine": psutil.cpu_count() or 1,
        "cpu_quota": cgroup_quota(),
        "frequency_mhz": frequencies(),
        "memory_nbytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter to the figures, as far as they are installed.

    "instruments" is the digest of `etl.measuring`, which took the figures.
    """
    found = {"python": platform.python_version(), "instruments": instruments().digest[:12]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Names of NVIDIA's cards, as the driver tells them; without torch, which takes seconds to load."""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for card in cards for line in card.read_text().splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
