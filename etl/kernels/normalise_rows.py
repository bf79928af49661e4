"""Which loop normalises rows of pixels: numba's once it is loaded, numpy's until then or where there is no numba."""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from types import ModuleType

import numpy as np

from etl.kernels import normalise_numpy

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
    _COMPILED.wait()
    return _COMPILED.module is not None


class _Compiled:
    """The module with the compiled loop, loaded once a process."""

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self._lock = threading.Lock()
        self._loading: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to load it, unless that was done."""
        if self._loading is not None:
            return
        with self._lock:
            if self._loading is None:
                # No daemon: the interpreter must not go away under LLVM while it works.
                loading = threading.Thread(target=self._load, name="etl-load-numba", daemon=False)
                loading.start()
                self._loading = loading  # from here on others may join it

    def wait(self) -> None:
        """Have it loaded."""
        self.begin()
        if self._loading is not None:
            self._loading.join()

    def before_fork(self) -> None:
        """Wait if it was begun, and let nobody begin: the child would inherit modules that are half imported, and
        nobody to finish them.
        """
        self._lock.acquire()
        if self._loading is not None and self._loading is not threading.current_thread():
            self._loading.join()

    def after_fork(self) -> None:
        """Let others begin again, in the parent and in the child."""
        self._lock.release()

    def _load(self) -> None:
        if importlib.util.find_spec("numba") is None:
            return
        try:
            from etl.kernels import normalise_numba
        except ImportError as error:  # it is there, but not for this numpy or without a part of it
            warnings.warn(f"numba cannot be imported, so numpy normalises: {error}", RuntimeWarning, stacklevel=1)
            return
        # The first call finds or compiles the machine code.
        number, three = np.zeros(1, np.int64), np.ones(CHANNELS, np.float32)
        image = np.zeros((1, 1, 1, CHANNELS), np.uint8)
        image.flags.writeable = False  # as a store gives them, which is another type to numba
        normalise_numba.normalise_rows(image, number, np.zeros((1, CHANNELS, 1, 1), np.float32), number, three, three)
        self.module = normalise_numba


_COMPILED = _Compiled()
os.register_at_fork(
    before=_COMPILED.before_fork, after_in_parent=_COMPILED.after_fork, after_in_child=_COMPILED.after_fork
)
