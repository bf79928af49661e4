"""When CPython's garbage collector runs."""

from __future__ import annotations

import gc
import sys
import sysconfig
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from etl.runtime.audit import Audit
from etl.runtime.boundaries import at_batch_boundaries
from etl.runtime.collections import CollectionWatch

if TYPE_CHECKING:
    from typing_extensions import Self

KINDS = ("default", "off", "freeze", "window:MS", "thresholds:A,B,C")
# Container objects that are made to see whether that starts a collection; several times the threshold, if that is low.
LEAST_PROBE, MOST_PROBE = 3_000, 300_000
SWITCHED_ON = "and automatic collection is on: something in this process calls gc.enable(). Remove that."


class GcPolicy:
    """A context manager that sets the garbage collector and restores what it found.

    `default` leaves it as it is; `off` stops automatic collections; `freeze` collects once and then takes every object
    alive out of later collections (`gc.freeze`), so that they walk only what is new; `window:MS` stops automatic ones
    and makes a full one between two batches where the last is at least MS milliseconds ago; `thresholds:A,B,C` is
    `gc.set_threshold`. Reference counting goes on in all. It is about this process alone, not its worker processes.

    Raises `ValueError` for another name or number, and `RuntimeError` when entered twice and for what this Python's
    collector cannot do.
    """

    def __init__(self, policy: str = "default") -> None:
        self.policy = policy
        self._kind, _, argument = policy.partition(":")
        self._window_seconds = 0.0
        self._thresholds: tuple[int, ...] = ()
        if self._kind == "window":
            self._window_seconds = _milliseconds(policy, argument) / 1e3
        elif self._kind == "thresholds":
            self._thresholds = _three(policy, argument)
        elif policy not in KINDS:
            raise ValueError(f"unknown GC policy {policy!r}; known: {', '.join(KINDS)}")
        self._entered: ExitStack | None = None
        # What a full collection took before everything was frozen.
        self._full_seconds = 0.0
        # Of a window: when the last collection was, how many were made here, and all that there were.
        self._thread = 0
        self._collected_at = 0.0
        self._own = 0
        self._saw_boundary = False
        self._watch = CollectionWatch()

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this GcPolicy is in force already")
        if self._kind != "default" and sys.implementation.name != "cpython":
            raise RuntimeError(
                f"GC policy {self.policy} needs CPython's collector; {sys.implementation.name} has another: use default"
            )
        with ExitStack() as stack:
            {
                "default": lambda _: None,
                "off": _disable,
                "freeze": self._freeze,
                "window": self._begin_window,
                "thresholds": self._set_thresholds,
            }[self._kind](stack)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()

    def audit(self) -> Audit:
        """What is in force, and what that does; only while it is. Makes some thousand objects, for `freeze` a full
        collection. Raises `RuntimeError` where it is not in force.
        """
        if self._entered is None:
            raise RuntimeError("this GcPolicy is not in force")
        effect, alarm = {
            "default": self._audit_default,
            "off": self._audit_off,
            "freeze": self._audit_freeze,
            "window": self._audit_window,
            "thresholds": self._audit_thresholds,
        }[self._kind]()
        state = "on" if gc.isenabled() else "off"
        thresholds = ",".join(map(str, gc.get_threshold()))
        in_force = f"automatic collection {state}, thresholds {thresholds}, {gc.get_freeze_count():,} objects frozen"
        return Audit(
            "gc", self.policy, in_force, effect, f"GC policy {self.policy} was asked for, {alarm}" if alarm else ""
        )

    def _freeze(self, stack: ExitStack) -> None:
        was_frozen = gc.get_freeze_count() > 0
        self._full_seconds = _full_collection()
        gc.freeze()
        if not was_frozen:
            # What somebody else had frozen cannot be told apart from what was frozen here, so all of it stays frozen.
            stack.callback(gc.unfreeze)

    def _begin_window(self, stack: ExitStack) -> None:
        _disable(stack)
        self._thread, self._collected_at = threading.get_ident(), time.perf_counter()
        self._own, self._saw_boundary = 0, False
        stack.enter_context(self._watch)
        stack.enter_context(at_batch_boundaries(self._at_boundary))

    def _set_thresholds(self, stack: ExitStack) -> None:
        before = gc.get_threshold()
        if sysconfig.get_config_var("Py_GIL_DISABLED") and self._thresholds[1:] != before[1:]:
            raise RuntimeError(f"GC policy {self.policy}: a free-threaded Python has one threshold, the first")
        if sys.version_info >= (3, 14) and self._thresholds[2] != before[2]:
            raise RuntimeError(
                f"GC policy {self.policy}: the collector of Python 3.14 has no third threshold; give it {before[2]}, "
                "as it stands"
            )
        stack.callback(gc.set_threshold, *before)
        gc.set_threshold(*self._thresholds)

    def _at_boundary(self) -> None:
        # A loader's thread that iterates something of its own is between its batches, not between the caller's.
        if threading.get_ident() != self._thread:
            return
        self._saw_boundary = True
        if time.perf_counter() - self._collected_at >= self._window_seconds:
            self._own += 1
            gc.collect()
            self._collected_at = time.perf_counter()

    def _audit_default(self) -> tuple[str, str]:
        return _probe()[0], ""

    def _audit_off(self) -> tuple[str, str]:
        return _probe()[0], SWITCHED_ON if gc.isenabled() else ""

    def _audit_freeze(self) -> tuple[str, str]:
        now, before = (f"{seconds * 1e3:.3g} ms" for seconds in (_full_collection(), self._full_seconds))
        effect = f"a full collection takes {now}, {before} before"
        if gc.get_freeze_count():
            return effect, ""
        return effect, "and no object is frozen any more: something in this process calls gc.unfreeze(). Remove that."

    def _audit_window(self) -> tuple[str, str]:
        if not self._saw_boundary:
            return "no batch boundary was seen", (
                "and no collection was made, since no batch boundary was seen: iterate with an iterator of etl or "
                "etl.fit, in the thread that set this, or call etl.runtime.batch_boundary() after each batch."
            )
        # Those that other code asks for are made whatever the policy.
        others = self._watch.count - self._own
        return f"{self._own} collections between batches, {others} others", SWITCHED_ON if gc.isenabled() else ""

    def _audit_thresholds(self) -> tuple[str, str]:
        effect, made, count = _probe()
        if gc.get_threshold() != self._thresholds:
            found = ",".join(map(str, gc.get_threshold()))
            return effect, f"and {found} are in force: something in this process calls gc.set_threshold(). Remove that."
        if self._thresholds[0] and not gc.isenabled():
            return effect, "and automatic collection is off, so that they do nothing: call gc.enable() before."
        if 0 < self._thresholds[0] < count and not made:
            return effect, f"and no collection began while {count:,} objects were made: use another policy here."
        return effect, ""


def _probe() -> tuple[str, int, int]:
    """Make objects, several times as many as the threshold; what to say of that, the collections, and the objects."""
    count = min(MOST_PROBE, max(LEAST_PROBE, 3 * gc.get_threshold()[0]))
    with CollectionWatch() as watch:
        kept = [[] for _ in range(count)]  # type: ignore[var-annotated]
        made = watch.count
    del kept
    return f"{made or 'no'} collections while {count:,} objects were made", made, count


def _disable(stack: ExitStack) -> None:
    stack.callback(gc.enable if gc.isenabled() else gc.disable)
    gc.disable()


def _full_collection() -> float:
    """Seconds of one."""
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started


def _milliseconds(policy: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"GC policy {policy!r}: a window is a number of milliseconds, such as window:500")
    return value


def _three(policy: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"GC policy {policy!r}: thresholds are three whole numbers, such as thresholds:700,10,10")
    return tuple(map(int, parts))
