"""Data of the benchmarks, made once for each machine: photographs, digits, a table, and sequences."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

import etl

DATA_VARIABLE = "FAIR_ETL_DATA"
# Incremented when the data change, so that no history mixes two sets of them.
DATA_VERSION = 1
SEED = 0
# A table has a label of one of `KINDS`, and sequences are in as many folders as they have classes.
COLUMNS, KINDS = 32, 7
STEP_COLUMNS, MIN_STEPS, MAX_STEPS, SEQUENCE_CLASSES = 8, 50, 150, 3
LABEL = "kind"


def find_photographs(samples: int) -> Path:
    """Return a folder of `samples` photographs, made once below FAIR_ETL_DATA or the user's cache."""
    photographs = _place("photographs", samples)
    if not photographs.is_dir():
        etl.demonstration.photographs(photographs, samples, SEED)
    return photographs


def find_digits() -> Path:
    """Return a folder of handwritten digits in MNIST's files, not compressed, as `find_photographs` does."""
    digits = _place("digits", 0)
    if not digits.is_dir():
        etl.demonstration.digits(digits, compress=False)
    return digits


def find_table(rows: int) -> Path:
    """Return a CSV file of `rows` rows of numbers with a label, as `find_photographs` does."""
    path = _place("table", rows).with_suffix(".csv")
    if not path.exists():
        numbers = np.random.default_rng(SEED).normal(size=(rows, COLUMNS))
        lines = (
            ",".join([*(f"{value:.6f}" for value in row), str(number % KINDS)]) for number, row in enumerate(numbers)
        )
        unfinished = path.with_suffix(".unfinished")
        _write_lines(unfinished, [",".join([*(f"x{number}" for number in range(COLUMNS)), LABEL])], lines)
        unfinished.rename(path)
    return path


def find_sequences(files: int) -> Path:
    """Return a folder of `files` CSV files, sequences of different lengths, as `find_photographs` does."""
    path = _place("sequences", files)
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        drawn = np.random.default_rng(SEED)
        for number in range(files):
            target = unfinished / f"{number % SEQUENCE_CLASSES}" / f"{number:05d}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            rows = drawn.normal(size=(int(drawn.integers(MIN_STEPS, MAX_STEPS)), STEP_COLUMNS))
            _write_lines(target, ["a,b,c,d,e,f,g,h"], (",".join(f"{value:.5f}" for value in row) for row in rows))
        unfinished.rename(path)
    return path


def _place(kind: str, size: int) -> Path:
    root = Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else user_cache_path("fair-etl")
    root.mkdir(parents=True, exist_ok=True)
    return root / f"{kind}-{DATA_VERSION}-{size}-{SEED}"


def _write_lines(path: Path, *parts: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for part in parts:
            file.writelines(f"{line}\n" for line in part)
