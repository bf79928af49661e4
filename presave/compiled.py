"""Loops that numba compiles: loaded in the background, since that takes 0.6 s, while numpy does the same work."""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from presave import forks

# A fork waits so long for numba to be imported and its machine code to be made; on a busy machine that takes a while.
LOADING_PATIENCE_SECONDS = 60.0


class Compiled:
    """A module of compiled loops, loaded once a process. Make it once, at the top of a module: forks heed it for ever.

    `load` imports the module and calls each loop once, so that its machine code is found or made.
    """

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self.module: ModuleType | None = None
        """None until it is loaded, and for good where numba is missing."""
        self._load_module = load
        # Re-entrant, because a signal's handler may fork in a thread that holds it, or begin.
        self._lock = threading.RLock()
        self._loading: threading.Thread | None = None
        self._has_begun = False
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def begin(self) -> None:
        """Begin to load it, unless that was done."""
        if self._loading is not None:
            return
        with forks.held_off(), self._lock:
            if self._loading is None:
                # No daemon: the interpreter must not go away under LLVM while it works.
                loading = threading.Thread(target=self._load, name="load-numba", daemon=False)
                loading.start()
                self._loading = loading  # from here on others may join it

    def wait(self) -> None:
        """Have it loaded."""
        self.begin()
        if self._loading is not None:
            with forks.allowed():  # they wait for the thread that loads, not for this one
                self._loading.join()

    def _load(self) -> None:
        # A child of a fork meanwhile would inherit modules that are half imported, and no thread to finish them.
        with forks.held_off(LOADING_PATIENCE_SECONDS):
            self._has_begun = True
            if importlib.util.find_spec("numba") is None:
                return
            try:
                self.module = self._load_module()
            except ImportError as error:  # it is there, but not for this numpy or without a part of it
                warnings.warn(
                    f"numba cannot be imported, so numpy does its work: {error}", RuntimeWarning, stacklevel=1
                )

    def _after_fork_in_child(self) -> None:
        # The thread is missing here. If it had not begun, another can; what it had begun, none can finish.
        if not self._has_begun:
            self._loading = None


def compile_loop(function: Callable[..., Any], signature: Any = None) -> Callable[..., Any]:
    """`function` compiled by numba, without the interpreter's lock; its machine code is kept on disk where that can be.

    Compiled at once for `signature`, and for nothing else, where there is one.
    """
    import numba

    try:
        compiled: Callable[..., Any] = numba.njit(signature, nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep the machine code: neither this folder nor the user's cache is writable
        compiled = numba.njit(signature, nogil=True)(function)
    return compiled
