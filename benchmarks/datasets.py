"""Data of the benchmarks, made once for each machine: photographs, digits, a table, and sequences."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

import etl

ROOT = Path(__file__).parents[1]
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
    return _made_once("photographs", samples, lambda path: etl.demonstration.photographs(path, samples, SEED))


def find_digits() -> Path:
    """Return a folder of handwritten digits in MNIST's files, not compressed, as `find_photographs` does."""
    return _made_once("digits", 0, lambda path: etl.demonstration.digits(path, compress=False))


def find_table(rows: int) -> Path:
    """Return a CSV file of `rows` rows of numbers with a label, as `find_photographs` does."""

    def write(path: Path) -> None:
        numbers = np.random.default_rng(SEED).normal(size=(rows, COLUMNS))
        labelled = np.column_stack([numbers, np.arange(rows) % KINDS])
        header = ",".join([*(f"x{number}" for number in range(COLUMNS)), LABEL])
        np.savetxt(path, labelled, [*["%.6f"] * COLUMNS, "%d"], ",", header=header, comments="")

    return _made_once("table", rows, write, ".csv")


def find_sequences(files: int) -> Path:
    """Return a folder of `files` CSV files, sequences of different lengths, as `find_photographs` does."""

    def write(path: Path) -> None:
        drawn = np.random.default_rng(SEED)
        for number in range(files):
            target = path / f"{number % SEQUENCE_CLASSES}" / f"{number:05d}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            steps = drawn.normal(size=(int(drawn.integers(MIN_STEPS, MAX_STEPS)), STEP_COLUMNS))
            np.savetxt(target, steps, "%.5f", ",", header="a,b,c,d,e,f,g,h", comments="")

    return _made_once("sequences", files, write)


def _made_once(kind: str, size: int, make: Callable[[Path], object], suffix: str = "") -> Path:
    # asv works in a temporary folder, so a relative path is one below that of asv.conf.json.
    root = ROOT / os.environ[DATA_VARIABLE] if DATA_VARIABLE in os.environ else user_cache_path("fair-etl")
    path = root / f"{kind}-{DATA_VERSION}-{size}-{SEED}{suffix}"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as unfinished:
            make(made := Path(unfinished) / path.name)
            made.rename(path)
    return path
