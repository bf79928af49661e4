"""Format "torch": one file of tensors for each shard, written by `torch.save` and memory-mapped by `torch.load`."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.shard_formats.arrays import ArrayShard, read_errors, validate_arrays
from presave.shard_formats.format import Format


class Torch(Format):
    """A dictionary of tensors. It is read with `weights_only=True`, so that no code in it is run."""

    name = "torch"

    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        torch = _import_torch()
        path = folder / f"shard-{shard_name}.pt"
        tensors = {}
        for name, array in columns.items():
            try:
                tensors[name] = torch.from_numpy(array)
            except TypeError:
                raise StoreError(
                    f"format 'torch' has no {array.dtype}, the dtype of column {name!r}; use 'npy'"
                ) from None
        try:
            torch.save(tensors, path)
        except RuntimeError as error:  # from torch's zip writer, without an errno
            raise OSError(f"torch: {error}") from error
        return [path]

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ArrayShard:
        (path,) = files
        torch = _import_torch()
        with read_errors(path, Exception):  # torch raises RuntimeError, pickle's errors and others for a damaged file
            _check_archive(path)
            tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            if not isinstance(tensors, dict):
                raise TypeError(f"it holds a {type(tensors).__name__}, not a dictionary of tensors")
            # tensor.numpy() raises if NumPy lacks the tensor's layout or dtype.
            arrays = {name: tensor.numpy() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        return ArrayShard(validate_arrays(path, arrays, columns))


def _check_archive(path: Path) -> None:
    # torch.save compresses nothing. A compressed member could fill memory when it is unpacked.
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("members of the archive are compressed, which torch.save does not do")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError("the members of the archive claim more bytes than it has")


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise StoreError("format 'torch' needs torch: pip install 'fair-etl[torch]'") from error
    return torch
