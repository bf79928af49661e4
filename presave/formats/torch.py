"""Format "torch": one file of tensors a shard, as `torch.save` writes it, memory-mapped by `torch.load`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.formats.arrays import ArrayShard, check_arrays, unreadable
from presave.formats.format import CheckOption


class Torch:
    """A dictionary of tensors. Read with `weights_only=True`: tensors and nothing that could be run."""

    name = "torch"
    is_trusted_only = False
    reads_whole_shards = False
    has_file_for_each_column = False
    options: Mapping[str, CheckOption] = MappingProxyType({})
    shard_records: int | None = None

    def write_columns(
        self,
        folder: Path,
        shard_name: str,
        columns: Mapping[str, np.ndarray],
        options: Mapping[str, Any],  # noqa: ARG002 - it has none
    ) -> list[Path]:
        torch = _import_torch()
        path = folder / f"shard-{shard_name}.pt"
        tensors = {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            for name, array in columns.items():
                try:
                    tensors[name] = torch.from_numpy(array)
                except TypeError:
                    raise StoreError(
                        f"format 'torch' has no {array.dtype}, the dtype of column {name!r}; use 'npy'"
                    ) from None
        torch.save(tensors, path)
        return [path]

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ArrayShard:
        (path,) = files
        torch = _import_torch()
        try:
            tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # torch raises RuntimeError, pickle's errors and others for a damaged file
            raise unreadable(path, error) from error
        if not isinstance(tensors, dict):
            raise StoreError(f"{path}: holds a {type(tensors).__name__}, not a dictionary of tensors")
        arrays = {name: tensor.numpy() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        return ArrayShard(check_arrays(path, arrays, columns))


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise StoreError("format 'torch' needs torch: pip install 'fair-etl[torch]'") from error
    return torch
