"""Which loop normalises rows of pixels: numba's once it is loaded, numpy's until then or where there is no numba."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from etl.kernels import normalise_numpy
from presave import mapped_rows
from presave.compiled import Compiled

KERNELS = ("auto", "numba", "numpy")
CHANNELS = 3

# Of `images, rows, out, slots, offset, scale`: writes `(images[rows] - offset) * scale` into `out[slots]`, channels
# first.
NormaliseRows = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]


def find_normalise_rows(kernel: str = "auto") -> NormaliseRows:
    """The loop called `kernel`. "auto" never waits: it begins to load numba in a thread, which takes 0.6 s, and gives
    numpy's until that is done; the bits are the same.

    Raises `ValueError` for an unknown kernel, `ImportError` for "numba" where that is missing.
    """
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(KERNELS)}")
    if kernel == "numba":
        _COMPILED.wait()
        if _COMPILED.module is None:
            raise ImportError("kernel 'numba' needs numba: pip install 'fair-etl[fast]'")
    if kernel == "auto":
        _COMPILED.begin()
    module = None if kernel == "numpy" else _COMPILED.module
    found: NormaliseRows = (module or normalise_numpy).normalise_rows
    return found


def load_kernels() -> bool:
    """Wait until the compiled loops are loaded, which happens in the background otherwise, beside the first batches;
    False where numba is not installed. For measurements, and for servers that fork.
    """
    for compiled in (_COMPILED, mapped_rows.COMPILED):
        compiled.wait()
    return _COMPILED.module is not None


def _load() -> ModuleType:
    from etl.kernels import normalise_numba

    # The first call finds or compiles the machine code.
    number, three = np.zeros(1, np.int64), np.ones(CHANNELS, np.float32)
    image = np.zeros((1, 1, 1, CHANNELS), np.uint8)
    image.flags.writeable = False  # as a store gives them, which is another type to numba
    normalise_numba.normalise_rows(image, number, np.zeros((1, CHANNELS, 1, 1), np.float32), number, three, three)
    return normalise_numba


_COMPILED = Compiled(_load)
