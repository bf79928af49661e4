"""Epochs of one way to load, each with the page cache in the state that the experiment asks for."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .clock import Step
from .meeting import Meeting
from .page_cache import drop_from_page_cache, pages_outside, read_into_page_cache, release_pages, reports_pages

if TYPE_CHECKING:
    from typing import Self

# Files are read into the page cache up to this often: the kernel may drop some of their pages meanwhile.
READS = 3


class Compute(Protocol):
    """Compute for each batch, in the process that loads."""

    @property
    def weights(self) -> str | None:
        """Digest of the initial weights; None if they are unknown."""

    @property
    def device(self) -> str:
        """Device of compute, such as "cpu"; "none" if compute is simulated."""

    @property
    def step(self) -> Step:
        """The function that the clock calls with each batch."""

    @property
    def no_op(self) -> Step:
        """A step of the same kind that does nothing."""

    @property
    def transfers(self) -> Sequence[float] | None:
        """Seconds that each step of the last epoch waited for the copy of its batch to the device.

        Empty if there is nothing to copy; None if that is unknown.
        """

    @property
    def score(self) -> float | None:
        """Number that equal compute has in common: the loss of the last batch, or the mean square of its outputs.

        None before the first batch, or if there is neither.
        """


@dataclass(frozen=True)
class MeasuredLoader:
    """One way to load, in the process that loads.

    Attributes
    ----------
    make : callable
        Returns a new loader: an iterable of batches, one epoch an iteration. It is closed if it has `close`.
    make_compute : callable
        Returns the compute for batches like the one that it is called with.
    files : list of Path
        Files that an epoch reads.
    is_cold : bool
        True if every epoch reads its files from the disk.
    can_rewind : bool
        True if it has `set_epoch`, so that all epochs of a sample have the same records in the same order.
    records : int or None
        Records that an epoch has; None if that is unknown, or if only some of its batches are taken.
    is_ahead : bool
        True if loading does not happen in the training loop, or if it is unknown where it happens.
    meeting : Meeting or None
        Where the ranks meet that load at the same time; None if there is one.
    mapped_nbytes : int
        Bytes of memory-mapped files that an epoch reads: the system does not count them as reads.
    """

    make: Callable[[], Iterable[Any]]
    make_compute: Callable[[Any], Compute]
    files: list[Path]
    is_cold: bool
    can_rewind: bool = False
    records: int | None = None
    is_ahead: bool = False
    mapped_nbytes: int = 0
    meeting: Meeting | None = None


class Epochs:
    """A context manager around a loader, which prepares the page cache before each epoch.

    Parameters
    ----------
    batches : int or None
        Batches that are taken of each epoch; None for all.
    """

    def __init__(self, loading: MeasuredLoader, batches: int | None = None) -> None:
        self._loading = loading
        self._batches = batches
        # An epoch that was cut off.
        self._begun: Iterator[Any] | None = None
        self.loader = loading.make()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch, as far as it is measured.

        If it is cut off, the next call of `rewind` or `close` abandons the rest, which is not timed: workers may finish
        what they have begun, and a whole epoch does not wait for that.
        """
        if self._batches is None:
            return iter(self.loader)
        self._abandon()
        self._begun = iter(self.loader)
        return islice(self._begun, self._batches)

    def rewind(self) -> None:
        """Return to the beginning of epoch 0, if the loader can."""
        self._abandon()
        if self._loading.can_rewind:
            self.loader.set_epoch(0)  # type: ignore[attr-defined]

    def begin(self) -> int:
        """Begin the next timed epoch at once: return to epoch 0 or, if epochs are cold, do what `prepare` does."""
        if self._loading.is_cold:
            return self.prepare()
        self.rewind()
        return 0

    def prepare(self) -> int:
        """Prepare the next epoch: read its files into the page cache or, for cold epochs, drop them from it.

        Return the number of pages for which this failed.
        """
        files = self._loading.files
        if not self._loading.is_cold:
            self.rewind()
            outside = pages_outside(files)
            if not all(map(reports_pages, files)):
                read_into_page_cache(files)
            for _ in range(READS):
                if outside:
                    read_into_page_cache(files)
                    outside = pages_outside(files)
            return outside
        # While this process maps the files, no process can drop their pages from the page cache.
        self.close()
        release_pages()
        meeting = self._loading.meeting
        if meeting is not None:
            meeting.wait()  # what another rank still maps cannot be dropped
        self.loader = self._loading.make()
        if meeting is None:
            return drop_from_page_cache(files)
        release_pages()  # that the new loader has looked at
        meeting.wait()
        misplaced = drop_from_page_cache(files) if meeting.rank == 0 else 0  # while no other rank looks at the pages
        meeting.wait()
        return misplaced

    def close(self) -> None:
        """Close the loader, or drop it if it has no `close`."""
        self._abandon()
        loader, self.loader = self.loader, ()
        close_loader(loader)
        # After an error, there may be none: it was closed, and another one could not be made.
        is_left = weakref.ref(loader) if self._loading.can_rewind and loader != () else lambda: True
        del loader
        if is_left():
            gc.collect()  # a loader in a reference cycle may end its workers only now

    def _abandon(self) -> None:
        begun, self._begun = self._begun, None
        close_loader(begun)


def close_loader(loader: object) -> None:
    """Close a loader, or an epoch of one, if it has `close`."""
    close = getattr(loader, "close", None)
    if callable(close):
        close()
