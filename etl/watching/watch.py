"""`etl.watch`: a loader whose loop is timed, with a line now and then and a diagnosis at the end."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from etl.runtime.resources import rank_cpus
from etl.training.listeners import Iteration, Performance, PerformanceListener
from etl.watching.diagnosis import Diagnosis, diagnose
from etl.watching.session import Session
from etl.watching.times import LoopTimes


class watch:  # noqa: N801 - called like a function, as `enumerate` is
    """Wraps any iterable of batches and yields the same, while it times the loop over it.

    When nothing refers to it any more, or the program ends, it says whether the loop waits for data, unless `summary`
    was called. Every attribute of the loader stays reachable, such as `dataset`, `sampler` and `state_dict`.

    Parameters
    ----------
    loader : iterable of batches
        A torch DataLoader, an iterator of etl, or any other iterable.
    frequency : int, optional
        Batches between two lines, which are those of `etl.PerformanceListener`; by default there are none.
    output : callable
        Called with each line, and with the diagnosis at the end.
    on_report : callable, optional
        Called with the `etl.training.Performance` of each line, for loggers.

    Raises
    ------
    ValueError
        If `frequency` is less than 1, or missing although there is `on_report`.

    Examples
    --------
    >>> loader = etl.watch(torch.utils.data.DataLoader(torch.arange(64), batch_size=8))
    >>> for batch in loader:
    ...     pass
    >>> loader.summary().batches
    8
    """

    def __init__(
        self,
        loader: Iterable[Any],
        frequency: int | None = None,
        *,
        output: Callable[[str], None] = print,
        on_report: Callable[[Performance], None] | None = None,
    ) -> None:
        self._loader = loader
        if frequency is None and on_report is not None:
            raise ValueError("on_report is called with each line: give frequency, the batches between two of them")
        self._session = Session()
        if frequency is not None:
            listener = PerformanceListener(frequency, report_device=False, output=output, on_report=on_report)
            self._session = Session(_reports_to(listener))
            weakref.finalize(self, _stop_counting, listener)
        self._session.start()
        self._end: weakref.finalize[..., Any] = weakref.finalize(self, _report, self._session, loader, output)

    def __iter__(self) -> Iterator[Any]:
        return self._session.epoch(self._loader, owner=self)

    def __len__(self) -> int:
        loader: Any = self._loader
        return len(loader)

    def __bool__(self) -> bool:
        return bool(self._loader)  # which may have no length

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watched loader times the loop of this process; pickle the loader itself")

    def __repr__(self) -> str:
        return f"watch({self._loader!r})"

    def summary(self) -> Diagnosis:
        """Return whether the loop waits for data so far, why, and what to do."""
        if self._end.detach():
            self._end = weakref.finalize(self, self._session.stop)
        self._session.read()
        return _diagnosis(self._session, self._loader)


def _report(session: Session, loader: Iterable[Any], output: Callable[[str], None]) -> None:
    """Stop watching, and say what was found."""
    session.stop()
    if session.is_here and any(each.batches for each in session.loops):
        found = _diagnosis(session, loader)
        output(found.describe(f"the loop over {found.loader}"))


def _stop_counting(listener: PerformanceListener) -> None:
    """Let a listener count garbage collections no more, without a line on the batches since the last one."""
    listener.fit_started()
    listener.fit_ended()


def _diagnosis(session: Session, loader: Iterable[Any]) -> Diagnosis:
    return diagnose(session.times_of(loader), rank_cpus(), session.memory.notes)


def _reports_to(listener: PerformanceListener) -> Callable[[LoopTimes, float | None], None]:
    """Return a function that reports each step to a listener of `etl.fit`. It does not refer to the watched loader."""
    numbers = itertools.count()
    listener.fit_started()

    def note(times: LoopTimes, step: float | None) -> None:
        if step is not None:
            epoch, wait = len(times.starts) - 1, times.wait
            done = Iteration(next(numbers), epoch, times.batch_records, wait, step, wait + step, None, "")
            listener.iteration_done(done)

    return note
