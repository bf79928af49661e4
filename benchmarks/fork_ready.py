"""Imports of a server from which processes are forked for measuring."""

from __future__ import annotations

import importlib.util

from benchmarks.measuring.layout import import_in_drawn_order

LIBRARIES = ("h5py", "numba", "PIL.Image", "torch")


def import_everything() -> None:
    """Import torch, numba and all that measuring needs, which takes longer than measuring, in an order drawn anew."""
    import_in_drawn_order(name for name in LIBRARIES if importlib.util.find_spec(name) is not None)
    load_kernels()
    import torch._dynamo  # noqa: F401 - torch.optim imports it when the first optimizer is made

    import etl  # noqa: F401 - imported before forking, as are torch and all that measuring needs
    from benchmarks import measure  # noqa: F401


def load_kernels() -> None:
    """Load the loops that etl compiles, if numba is installed: half a second, most of it before the first function."""
    import etl

    if hasattr(etl, "load_kernels"):
        etl.load_kernels()
        return
    try:
        import numba
    except ImportError:
        return
    numba.njit(nogil=True)(lambda: 0)()
