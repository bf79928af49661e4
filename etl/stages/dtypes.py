"""The floating-point types that features can have."""

from __future__ import annotations

from typing import overload

import ml_dtypes
import numpy as np

# numpy does not have bfloat16; ml_dtypes, which JAX and TensorFlow use, adds it.
DTYPES: dict[str, np.dtype] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@overload
def find_dtype(name: str) -> np.dtype: ...


@overload
def find_dtype(name: str | None) -> np.dtype | None: ...


def find_dtype(name: str | None) -> np.dtype | None:
    """Return the numpy dtype called `name`, or None for None, which stands for the dtypes that records have.

    Raises `ValueError` that lists the known names if the name is unknown.
    """
    if name is None:
        return None
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}") from None


def is_floating(dtype: np.dtype) -> bool:
    """Return True if `dtype` is bfloat16 or one of numpy's floating-point types."""
    return dtype.kind == "f" or dtype == DTYPES["bfloat16"]
