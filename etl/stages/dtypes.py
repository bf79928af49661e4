"""The floating-point types that features can have."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# numpy has no bfloat16 of its own; ml_dtypes, which JAX and TensorFlow use, registers one.
DTYPES: dict[str, np.dtype] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def find_dtype(name: str) -> np.dtype:
    """The numpy dtype called `name`; raises `ValueError` that lists the known ones."""
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}") from None


def is_floating(dtype: np.dtype) -> bool:
    """Whether `dtype` is one of numpy's floating types or bfloat16."""
    return dtype.kind == "f" or dtype == DTYPES["bfloat16"]
