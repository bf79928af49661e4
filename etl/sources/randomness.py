"""Random transforms inside a data set: a check before presaving, which would freeze them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from etl.sources.cifar10 import Cifar10
from etl.sources.csv import Csv
from etl.sources.idx import Idx
from etl.sources.image_folder import ImageFolder
from etl.sources.record import Record, RecordSequence, source_name
from etl.sources.sequences import Sequences
from etl.sources.tar import Tar

# Sources that only read files. A subclass may do more.
FILE_SOURCES = (Cifar10, Csv, Idx, ImageFolder, Sequences, Tar)
SEEDS = (1, 2)
MAX_RECORDS = 16


def is_random(source: RecordSequence) -> str | None:
    """Return a sentence that names the first record which differs from one reading to the next; None if none does.

    Evenly spaced records are read twice, with different seeds of Python's, numpy's and torch's global generators. Their
    states are restored afterwards. Records that cannot be read are left out. Sources that only read files are not read.
    """
    if type(source) in FILE_SOURCES:
        return None
    indices = evenly_spaced(source)
    with random_states_kept():
        first, second = (_read(source, indices, seed) for seed in SEEDS)
    for index in first.keys() & second.keys():
        field = first_difference(first[index], second[index])
        if field is not None:
            return (
                f"record {index} of {source_name(source)} differs from one reading to the next, in {field!r}, so "
                "presaving would freeze its random transforms"
            )
    return None


def evenly_spaced(source: RecordSequence) -> list[int]:
    """Return the indices of at most `MAX_RECORDS` records."""
    indices: list[int] = np.linspace(0, len(source) - 1, min(MAX_RECORDS, len(source))).astype(int).tolist()
    return indices


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the states of the global random generators of Python, numpy and, if it is loaded, torch's CPU."""
    torch: Any = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's transforms use it
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torch_state)


def _read(source: RecordSequence, indices: list[int], seed: int) -> dict[int, dict[str, np.ndarray]]:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that the user's transforms use
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed devices
    found: dict[int, dict[str, np.ndarray]] = {}
    for index in indices:
        try:
            found[index] = copied_arrays(source[index])
        except Exception:  # noqa: BLE001, S112 - the error is reported when the record is loaded
            continue
    return found


def copied_arrays(record: Record) -> dict[str, np.ndarray]:
    """Return copies of the arrays of `record`, since a data set may reuse its buffers."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in record.items():
        if isinstance(value, tuple):
            arrays |= {f"{name}.{place}": np.array(each) for place, each in enumerate(value)}
        else:
            arrays[name] = np.array(value)
    return arrays


def first_difference(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> str | None:
    if one.keys() != other.keys():
        return next(iter(one.keys() ^ other.keys()))
    for name, value in one.items():
        again = other[name]
        if (value.dtype, value.shape, value.tobytes()) != (again.dtype, again.shape, again.tobytes()):
            return name
    return None
