"""Names on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def names_among(known: Collection[str], kind: str) -> Callable[[str], tuple[str, ...]]:
    """For argparse: reads names with commas between them, each of which is one of `known`, the names of a `kind`."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {kind} is called {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return read
