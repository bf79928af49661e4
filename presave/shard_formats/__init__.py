"""The storage formats by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from presave.errors import StoreError
from presave.shard_formats.format import ColumnReader, Format, ShardReader
from presave.shard_formats.hdf5 import Hdf5
from presave.shard_formats.npy import Npy
from presave.shard_formats.pickle import Pickle
from presave.shard_formats.safetensors import Safetensors
from presave.shard_formats.torch import Torch

FORMATS: dict[str, Format] = {each.name: each for each in (Npy(), Hdf5(), Pickle(), Torch(), Safetensors())}


def formats() -> tuple[str, ...]:
    """Return the names of the formats that `write` and `convert` accept. The first is the default.

    Examples
    --------
    >>> presave.formats()[0]
    'npy'
    """
    return tuple(FORMATS)


def find_format(name: str) -> Format:
    """Return the format called `name`; raise `StoreError` with the known names if there is none."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise StoreError(f"unknown format {name!r}; known: {', '.join(FORMATS)}") from None


def check_options(format: Format, options: Mapping[str, Any]) -> None:
    """Raise `StoreError` if the format lacks one of the options, or does not accept its value."""
    unknown = sorted(set(options) - set(format.options))
    if unknown:
        raise StoreError(
            f"format {format.name!r} has no option {', '.join(unknown)}; it has {', '.join(format.options) or 'none'}"
        )
    for name, value in options.items():
        format.options[name](value)


__all__ = ["FORMATS", "ColumnReader", "Format", "ShardReader", "check_options", "find_format", "formats"]
