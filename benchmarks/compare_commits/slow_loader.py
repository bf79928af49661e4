"""A loader that is slower by a known share, so that the A/A study knows which change is to be found."""

from __future__ import annotations

from time import thread_time
from typing import Any


class SlowLoader:
    """Does what another loader does, and takes a share longer to load each chunk.

    It burns CPU time of its own thread, so that a busy machine does not make it slower still. It takes the place of the
    loader of any commit, whatever other methods that one has.

    Parameters
    ----------
    loader : Loader
        The loader of an iterator, of the commit that is measured.
    share : float
        Time to add, as a share of the time that `loader` takes.
    """

    def __init__(self, loader: Any, share: float) -> None:
        self._loader = loader
        self._share = share

    def load(self, *arguments: Any, **keywords: Any) -> Any:
        """Load a chunk, and then spend the additional time."""
        started = thread_time()
        loaded = self._loader.load(*arguments, **keywords)
        ended = thread_time()
        until = ended + self._share * (ended - started)
        while thread_time() < until:
            pass
        return loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
