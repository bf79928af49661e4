"""Tensors that share the memory of arrays, and torch's dtypes by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from etl.loading.batch import Batch
from etl.stages.dtypes import DTYPES, find_dtype


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor that shares the memory of `array`: a tensor, a numpy array or, through DLPack, any other.

    bfloat16 is passed as its bits, since torch cannot convert it from numpy. An object that has only `__array__` is
    copied if that copies.
    """
    if isinstance(array, torch.Tensor):
        return array
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__dlpack__"):
            return from_dlpack(array)
        array = np.asarray(array)
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return an array that shares the memory of `tensor`; raise `TypeError` if it is not on the CPU."""
    values = tensor.detach()
    if values.dtype == torch.bfloat16:
        return values.view(torch.uint16).numpy().view(DTYPES["bfloat16"])
    array: np.ndarray = values.numpy()
    return array


def map_batch(batch: Batch, convert: Callable[[Any], Any]) -> Batch:
    """Return `batch` with `convert` applied to each of its arrays."""

    def each(part: Any) -> Any:
        if part is None:
            return None
        return tuple(map(each, part)) if isinstance(part, tuple) else convert(part)

    return Batch(*(each(getattr(batch, field.name)) for field in fields(Batch)))


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype with this name; raise `ValueError` for one that features cannot have."""
    find_dtype(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype
