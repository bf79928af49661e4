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
    copied if that copies, and an array that torch cannot share: of the other byte order, with strides that torch lacks,
    or read-only. Raises `TypeError` for a dtype that torch lacks.
    """
    if isinstance(array, torch.Tensor):
        return array
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__dlpack__"):
            return from_dlpack(array)
        array = np.asarray(array)
    if not array.flags.writeable:
        array = array.copy()
    bits = array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array
    try:
        tensor = torch.from_numpy(bits)
    except ValueError:
        tensor = torch.from_numpy(bits.astype(bits.dtype.newbyteorder("="), order="C"))
    return tensor if bits is array else tensor.view(torch.bfloat16)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return an array that shares the memory of `tensor`; raise `TypeError` if it is not on the CPU."""
    values = tensor.detach()
    if values.dtype == torch.bfloat16:
        return values.view(torch.uint16).numpy().view(DTYPES["bfloat16"])
    array: np.ndarray = values.numpy()
    return array


def first_array(part: Any) -> Any:
    """Return `part` (features or labels of a batch), or its first array if it is a tuple."""
    return part[0] if isinstance(part, tuple) else part


def map_batch(batch: Batch, convert: Callable[[Any], Any]) -> Batch:
    """Return `batch` with `convert` applied to each of its arrays; or raise `ValueError` that names the array."""

    def each(name: str, part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, tuple):
            return tuple(each(name, one) for one in part)
        try:
            return convert(part)
        except TypeError as error:
            raise ValueError(
                f"the {name} of a batch have dtype {getattr(part, 'dtype', type(part).__name__)}, which torch lacks: "
                "convert them to numbers that it has, in the source or a stage"
            ) from error

    return Batch(*(each(field.name, getattr(batch, field.name)) for field in fields(Batch)))


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype with this name; raise `ValueError` for one that features cannot have."""
    find_dtype(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype
