"""Loops compiled by numba. Loading them takes 0.6 s, so a background thread does it while NumPy does the work."""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from presave import forks, interrupts

# How long a fork waits until numba and the machine code are loaded, which takes long on a busy machine.
LOADING_PATIENCE_SECONDS = 60.0


class Compiled:
    """A module of compiled loops that is loaded once in each process.

    Create it once, at the top level of a module: its fork handler is never removed.

    Parameters
    ----------
    load : callable
        Imports and returns the module, with machine code for each of its loops.

    Attributes
    ----------
    module : module, optional
        None until it is loaded. It remains None if numba is missing, or cannot load it.
    error : Exception, optional
        Why numba, which is installed, cannot load it.
    """

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self.module: ModuleType | None = None
        self.error: Exception | None = None
        self._load_module = load
        # Re-entrant, because a signal handler may fork or call `begin` in a thread that holds it.
        self._lock = threading.RLock()
        self._load_lock = threading.Lock()
        self._loading: interrupts.Worker | None = None
        self._has_begun = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork_in_child)

    def begin(self) -> None:
        """Start to load the module in the background, unless that was done before."""
        if self._loading is not None:
            return
        with forks.held_off(), self._lock:
            if self._loading is None:
                loading = interrupts.Worker(self._load, name="load-numba")
                loading.daemon = False  # the interpreter must not shut down while LLVM works
                # After an interrupt another one may be started: the second finds the module loaded.
                interrupts.start([loading])
                self._loading = loading  # only now: other threads may wait for it as soon as it is set

    def wait(self) -> None:
        """Load the module and wait until that is done."""
        self.begin()
        if self._loading is not None:
            with forks.allowed():  # a fork has to wait for the loading thread, not for this one
                self._loading.wait()

    def _load(self) -> None:
        # A child forked meanwhile would inherit half-imported modules, but not the thread that is importing them.
        with forks.held_off(LOADING_PATIENCE_SECONDS), self._load_lock:
            if self._has_begun:
                return
            self._has_begun = True
            if importlib.util.find_spec("numba") is None:
                return
            try:
                self.module = self._load_module()
            except Exception as error:  # noqa: BLE001 - importing and compiling may raise anything
                self.error = error
                text = f"numba cannot be used, so NumPy is used instead: {type(error).__name__}: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=1)
            if _cache_problems[:1] != _shown:  # after the module is set: a filter may turn the warning into an error
                _shown.append(_cache_problems[0])
                warnings.warn(_cache_problems[0], RuntimeWarning, stacklevel=1)

    def _after_fork_in_child(self) -> None:
        # The child has no loading thread. It may start one, unless the parent's had begun: an import that the fork cut
        # off cannot be repeated.
        if not self._has_begun:
            self._loading = None


# Sentences on what is wrong with numba's cache, and the first of them once it was shown.
_cache_problems: list[str] = []
_shown: list[str] = []


def compile_loop(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile `function` with numba, to run without the GIL.

    The machine code is cached on disk. A damaged cache is written anew, and without a cache the function is compiled in
    every process; a warning says why. Raises `RuntimeError` if the user has turned numba's compiler off.

    Parameters
    ----------
    signature : numba type
        The types of its arguments. It is compiled for no others, which would happen when it is called.
    """
    import numba

    if numba.njit(function) is function:  # nothing is compiled, and the loops are made of parts that only numba can run
        raise RuntimeError("NUMBA_DISABLE_JIT is set")

    def compiled(cache: bool) -> Callable[..., Any]:
        loop: Callable[..., Any] = numba.njit(signature, nogil=True, cache=cache)(function)
        return loop

    try:
        return compiled(cache=True)
    except Exception as error:  # noqa: BLE001 - unpickling a damaged file may raise anything
        cause, folder = error, ""
    try:
        cached = numba.njit(cache=True)(function)
        folder = f" in {Path(str(cached.stats.cache_path)).parent}"
        # With nothing compiled, this only empties the cache: its index must not name files that could not be written.
        cached.recompile()
        if not isinstance(cause, OSError):
            loop = compiled(cache=True)
            _cache_problems.append(
                f"numba's cache{folder} was damaged, and has been written anew: {type(cause).__name__}: {cause}"
            )
            return loop
    except Exception as error:  # noqa: BLE001 - the same
        cause = error
    loop = compiled(cache=False)
    _cache_problems.append(
        f"numba's cache{folder} cannot be used, so each process compiles its loops again, which takes seconds: "
        f"{type(cause).__name__}: {cause}; set NUMBA_CACHE_DIR to a folder with room that can be written to"
    )
    return loop
