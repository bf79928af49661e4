"""Arrays seen as tensors, and dtypes by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from etl.loading.batch import Batch
from etl.stages.dtypes import DTYPES, find_dtype


def as_tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    """A tensor over the memory of `array`, no copy; bfloat16 crosses as its bits: torch cannot take it from numpy."""
    if isinstance(array, torch.Tensor):
        return array
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """An array over the memory of `tensor`, which is on the CPU, no copy; raises `TypeError` for one that is not."""
    values = tensor.detach()
    if values.dtype == torch.bfloat16:
        return values.view(torch.uint16).numpy().view(DTYPES["bfloat16"])
    array: np.ndarray = values.numpy()
    return array


def map_batch(batch: Batch, convert: Callable[[Any], Any]) -> Batch:
    """`batch` with `convert` applied to each of its arrays."""

    def each(part: Any) -> Any:
        if part is None:
            return None
        return tuple(map(each, part)) if isinstance(part, tuple) else convert(part)

    return Batch(*(each(getattr(batch, field.name)) for field in fields(Batch)))


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype called `name`; raises `ValueError` for one that features cannot have."""
    find_dtype(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype
