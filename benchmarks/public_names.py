"""Public names of the commit under test, wherever it has them."""

from __future__ import annotations

from typing import Any


def find_public(name: str) -> Any:
    """Return what `etl` or one of its submodules calls `name`, or None if this commit has no such name."""
    import etl  # here, because processes that import this module import their libraries in drawn order

    for module in (etl, *(getattr(etl, each, None) for each in ("kernels", "loading", "training"))):
        if name in getattr(module, "__all__", ()):
            return getattr(module, name)
    return None


def load_kernels() -> None:
    """Load etl's compiled loops, if numba is installed: otherwise they load in the background of what is measured.

    At commits without them an empty function is compiled, since most of that time is numba's start-up.
    """
    load = find_public("load_kernels")
    if load is not None:
        load()
        return
    try:
        import numba
    except ImportError:
        return
    numba.njit(nogil=True)(lambda: 0)()
