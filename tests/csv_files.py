"""Tables of numbers in CSV that tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table(folder: Path, rows: int = 500) -> Path:
    values = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    lines = [",".join(map(str, row.tolist())) + f",{number % 7}\n" for number, row in enumerate(values)]
    return write(folder, "a,b,c,d,label\n" + "".join(lines))
