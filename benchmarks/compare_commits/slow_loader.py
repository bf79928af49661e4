"""A loader that is slower by a known share, so that the A/A study knows which change should be found."""

from __future__ import annotations

from time import thread_time
from typing import Any


class SlowLoader:
    """A wrapper around another loader that takes longer, by a share, to load each chunk.

    It burns CPU time of its own thread, so that a busy machine does not make it slower still. It can wrap the loaders
    of every commit, since it passes on all attributes but `load`.

    Parameters
    ----------
    loader : Loader
        The loader of an iterator of the measured commit.
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
