"""The identity of the instruments that take a sample: path and digest of this package."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import xxhash

from .values import JsonValues


@dataclass(frozen=True)
class Instruments(JsonValues):
    """The path of the package, and a digest of its modules.

    Attributes
    ----------
    digest : str
        128 bits of the names and bytes of its modules, as hexadecimal digits.
    """

    path: str
    digest: str

    def __str__(self) -> str:
        return f"{self.path} ({self.digest[:12]})"


@functools.cache
def current_instruments() -> Instruments:
    """Return the instruments of this process."""
    folder = Path(__file__).resolve().parent
    digest = xxhash.xxh3_128()
    for module in sorted(folder.glob("*.py")):
        digest.update(module.name.encode())
        digest.update(module.read_bytes())
    return Instruments(str(folder), digest.hexdigest())
