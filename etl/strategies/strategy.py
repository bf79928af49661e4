"""A strategy: a way to get from data to batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from etl.iterators import AsyncIterator, BatchIterator


@dataclass(frozen=True)
class Strategy:
    """A way to get from data to batches.

    Parameters
    ----------
    name : str
        How the command line asks for it and reports show it.
    reads : {"source", "store"}
        A source of encoded records, which take every stage of the pipeline in every epoch; or a store, which has to be
        written first and holds records as they are after one of the stages.
    ahead : {"thread", "process"}, optional
        Workers that load the next batches during compute. Without any, the training loop itself loads.
    is_default : bool
        Whether it is compared unless other strategies are asked for.
    """

    name: str
    reads: Literal["source", "store"]
    ahead: Literal["thread", "process"] | None = None
    is_default: bool = False

    @property
    def reads_store(self) -> bool:
        """Whether a store has to be written before it can load."""
        return self.reads == "store"

    @property
    def loads_ahead(self) -> bool:
        """Whether it loads during compute."""
        return self.ahead is not None

    @property
    def uses_processes(self) -> bool:
        """Whether processes load, not threads."""
        return self.ahead == "process"

    def wrap(self, iterator: BatchIterator, prefetch_size: int, workers: int) -> BatchIterator:
        """Return an iterator over the batches of `iterator` that loads them as this strategy does.

        Parameters
        ----------
        iterator : BatchIterator
            A plain iterator over what the strategy reads.
        prefetch_size : int
            Batches that are loaded ahead, if the strategy loads ahead.
        workers : int
            Threads or processes that load them; at least one does.
        """
        if self.ahead is None:
            return iterator
        if self.ahead == "process":
            return AsyncIterator(iterator, prefetch_size, workers="process", processes=max(1, workers))
        return AsyncIterator(iterator, prefetch_size, threads=max(1, workers))
