"""Peak memory and bytes read of this process and its workers, as the kernel counts them."""

from __future__ import annotations

from pathlib import Path

import psutil

# Written to clear_refs it makes the peak of resident memory what is resident now (proc(5)).
RESET_PEAK = "5"


def reset_peak_memory() -> None:
    """Have the peak begin anew. Raises `OSError` where the kernel was built without it."""
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def peak_memory() -> int:
    """Bytes resident at the peak, mapped files included: of this process since `reset_peak_memory`, and of its worker
    processes since they started, without what these share with it.
    """
    total = _kilobytes("self", "VmHWM")
    for child in psutil.Process().children(recursive=True):
        try:
            total += max(0, _kilobytes(str(child.pid), "VmHWM") - _kilobytes(str(child.pid), "RssShmem"))
        except OSError:
            continue  # it has ended
    return total * 1024


def _kilobytes(process: str, name: str) -> int:
    return int(_value(Path(f"/proc/{process}/status"), name).split()[0])


def _value(file: Path, name: str) -> str:
    for line in file.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return "0"
