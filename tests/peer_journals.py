"""A made-up journal of peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.pairs import DOCUMENTED, TUNED
from benchmarks.peers.rows import AGAIN, OURS, PRESAVED, RAW, SLOWED

SPDL = "SPDL, simplejpeg"


def write_journal(path: Path) -> Path:
    """Write pairs of 1,000 photographs: SPDL is slower as documented, and faster when both are tuned. Return `path`."""
    lines: list[dict[str, Any]] = [
        {"experiment": "peers", "photographs": 1000, "batch_size": 64, "workers": 2, "missing": {"ffcv": "no\nwheel"}},
        {"environment": {"commit": "0123456789ab", "machine": {"cpus": 2, "processor": "a processor"}}},
    ]

    def note(task: str, name: str, arm: str, ours: float, theirs: float, count: int = 6, **more: Any) -> None:
        for number in range(count):
            base, other = ({"epochs": [each], "cpu_seconds": each, "peak_nbytes": 10**8} for each in (ours, theirs))
            lines.append({"key": [task, name, arm, number], "result": {"base": base, "other": other, **more}})

    note(RAW, AGAIN, DOCUMENTED, 1.0, 1.0, distance=0.0)
    note(RAW, SLOWED, DOCUMENTED, 1.0, 1.02, distance=0.0)
    note(RAW, SPDL, DOCUMENTED, 1.0, 1.1, distance=0.0123)
    note(RAW, OURS, "prefetch_size=6", 1.0, 0.5, count=2, arguments={"prefetch_size": 6})
    note(RAW, SPDL, "workers=3", 1.1, 0.3, count=2, arguments={"workers": 3})
    note(RAW, SPDL, TUNED, 0.5, 0.25, arguments={"workers": 3}, distance=0.0123)
    note(PRESAVED, "h5py", DOCUMENTED, 0.1, 1.0, count=5, distance=0.0)
    failed = {"base": None, "other": None, "failure": "Traceback\nModuleNotFoundError: grain"}
    lines.append({"key": [RAW, "Grain, simplejpeg", DOCUMENTED, 0], "result": failed})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path
