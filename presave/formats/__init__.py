"""The storage formats, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from presave.errors import StoreError
from presave.formats.format import ColumnReader, Format, ShardReader
from presave.formats.hdf5 import Hdf5
from presave.formats.npy import Npy
from presave.formats.pickle import Pickle
from presave.formats.safetensors import Safetensors
from presave.formats.torch import Torch

FORMATS: dict[str, Format] = {
    "npy": Npy(),
    "hdf5": Hdf5(),
    "pickle": Pickle(),
    "torch": Torch(),
    "safetensors": Safetensors(),
}


def formats() -> tuple[str, ...]:
    """The names of the formats that `write` and `convert` accept; the first is the default."""
    return tuple(FORMATS)


def find_format(name: str) -> Format:
    """The format called `name`; raises `StoreError` that lists the known ones."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise StoreError(f"unknown format {name!r}; known: {', '.join(FORMATS)}") from None


def check_options(format: Format, options: Mapping[str, Any]) -> None:
    """Raise `StoreError` for options that the format does not have, and values that they cannot have."""
    unknown = sorted(set(options) - set(format.options))
    if unknown:
        raise StoreError(
            f"format {format.name!r} has no option {', '.join(unknown)}; it has {', '.join(format.options) or 'none'}"
        )
    for name, value in options.items():
        format.options[name](value)


__all__ = ["FORMATS", "ColumnReader", "Format", "ShardReader", "check_options", "find_format", "formats"]
