"""Workloads of comparisons over small tables, and profiles for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etl.comparison.settings import Settings
from etl.comparison.workload import Workload

COLUMNS = 4


def write_table(folder: Path, rows: int = 200) -> Path:
    """A CSV file of `COLUMNS` columns of numbers and a column `kind` of three names."""
    random = np.random.default_rng(0)
    path = folder / "table.csv"
    lines = [",".join([*(f"column{number}" for number in range(COLUMNS)), "kind"])]
    values, kinds = random.standard_normal((rows, COLUMNS)), random.integers(3, size=rows)
    lines += [
        ",".join([*(f"{each:.4f}" for each in row), "abc"[kind]]) for row, kind in zip(values, kinds, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def make_workload(folder: Path, rows: int = 200, cpus: int = 2, **settings: Any) -> Workload:
    """The comparison of a table; stores go below `folder`."""
    table = write_table(folder, rows)
    chosen = {"batch_size": 10, "table_options": {"label": "kind"}, **settings}
    return Workload(Settings(source=str(table), **chosen), folder, cpus)


def make_split(compute: int, loading: int, records_per_second: float, slowdown: float = 1.0) -> dict[str, Any]:
    """One split of a profile, in which compute and loading each take `slowdown` times as long as alone."""
    return {
        "compute_threads": compute,
        "loading_threads": loading,
        "records_per_second": records_per_second,
        "compute_slowdown": slowdown,
        "loading_slowdown": slowdown,
    }


def make_profile(load: float = 1e-3, compute: float = 1e-2, stages: tuple[str, ...] = ("read",), **figures: Any) -> Any:
    """A profile of a pipeline whose stages together take `load` seconds a record, and a training step `compute`."""
    return {
        "stages": [
            {"name": name, "seconds_per_record": load / len(stages), "nbytes_per_record": 16.0} for name in stages
        ],
        "compute_seconds": {"1": compute, "2": compute},
        "splits": [make_split(1, 1, 1 / load), make_split(1, 2, 1 / load), make_split(2, 2, 1 / load)],
        "copy_bytes_per_second": 1e9,
        **figures,
    }
