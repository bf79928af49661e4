"""A policy for CPython's garbage collector: when it runs."""

from __future__ import annotations

import gc
import sys
import sysconfig
import threading
import time
from contextlib import ExitStack

from etl.runtime.audit import Audit
from etl.runtime.boundaries import at_batch_boundaries
from etl.runtime.gc_watch import CollectionWatch
from etl.runtime.policy import Policy

KINDS = ("default", "off", "freeze", "window:MS", "thresholds:A,B,C")
# The audit makes this many container objects to find out if that starts a collection: several times the threshold.
MIN_PROBE_OBJECTS, MAX_PROBE_OBJECTS = 3_000, 300_000
# Python 3.12 counts its immortal objects, some hundred, as frozen; `gc.freeze` freezes all there are, thousands.
MIN_FROZEN = 1_000
SWITCHED_ON = "and automatic collection is on: something in this process calls gc.enable(). Remove that."


class GcPolicy(Policy):
    """A context manager that configures the garbage collector and restores the former state.

    It affects this process, and worker processes of etl that start while it is in force. Processes that other libraries
    start are not affected, unless they are forked. Reference counting goes on under every policy.

    Parameters
    ----------
    policy : str
        "default" changes nothing. "off" stops automatic collections. "freeze" collects once and then excludes all live
        objects from later collections (`gc.freeze`), so that these walk new objects only. "window:MS" stops automatic
        collections, and runs a full collection between two batches if the last one was at least MS milliseconds ago.
        "thresholds:A,B,C" calls `gc.set_threshold`.

    Raises
    ------
    ValueError
        If the policy is unknown or its number is invalid.
    RuntimeError
        On entering, if the policy is in force already or this Python's collector does not support it.

    Examples
    --------
    >>> with etl.runtime.GcPolicy("freeze") as policy:
    ...     policy.audit().in_force
    'automatic collection on, thresholds ..., ... objects frozen'
    """

    def __init__(self, policy: str = "default") -> None:
        self.policy = policy
        self._kind, _, argument = policy.partition(":")
        self._window_seconds = 0.0
        self._thresholds: tuple[int, ...] = ()
        if self._kind == "window":
            self._window_seconds = _parse_window(policy, argument) / 1e3
        elif self._kind == "thresholds":
            self._thresholds = _parse_thresholds(policy, argument)
        elif policy not in KINDS:
            raise ValueError(f"unknown GC policy {policy!r}; known: {', '.join(KINDS)}")
        # Duration of a full collection before objects were frozen.
        self._full_seconds = 0.0
        # For "window": the thread that entered, the time of the last collection, and the number of collections made
        # here; the watch counts all.
        self._thread = 0
        self._collected_at = 0.0
        self._own = 0
        self._saw_boundary = False
        self._watch = CollectionWatch()

    def _put_in_force(self, stack: ExitStack) -> None:
        if self._kind != "default" and sys.implementation.name != "cpython":
            raise RuntimeError(
                f"GC policy {self.policy} needs CPython's collector; {sys.implementation.name} has another: use default"
            )
        {
            "default": lambda _: None,
            "off": _disable,
            "freeze": self._freeze,
            "window": self._begin_window,
            "thresholds": self._set_thresholds,
        }[self._kind](stack)

    def audit(self) -> Audit:
        """Report what is in force and what it does; raise `RuntimeError` outside of the `with` block.

        Makes some thousand objects, or for "freeze" a full collection.
        """
        self._require_in_force()
        effect, alarm = {
            "default": lambda: (_probe()[0], ""),
            "off": lambda: (_probe()[0], SWITCHED_ON if gc.isenabled() else ""),
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
        was_frozen = gc.get_freeze_count() >= MIN_FROZEN
        self._full_seconds = _full_collection()
        gc.freeze()
        if not was_frozen:
            # Otherwise all objects stay frozen: those that other code froze before cannot be distinguished from ours.
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
                "its present value"
            )
        stack.callback(gc.set_threshold, *before)
        gc.set_threshold(*self._thresholds)

    def _at_boundary(self) -> None:
        # Other threads, such as a loader thread that runs an iterator, announce boundaries that are not the training
        # loop's.
        if threading.get_ident() != self._thread:
            return
        self._saw_boundary = True
        if time.perf_counter() - self._collected_at >= self._window_seconds:
            self._own += 1
            gc.collect()
            self._collected_at = time.perf_counter()

    def _audit_freeze(self) -> tuple[str, str]:
        now, before = (f"{seconds * 1e3:.3g} ms" for seconds in (_full_collection(), self._full_seconds))
        effect = f"a full collection takes {now}, {before} before"
        if gc.get_freeze_count() >= MIN_FROZEN:
            return effect, ""
        return effect, "and no object is frozen any more: something in this process calls gc.unfreeze(). Remove that."

    def _audit_window(self) -> tuple[str, str]:
        if not self._saw_boundary:
            return "no batch boundary was seen", (
                "and no collection was made, since no batch boundary was seen: iterate with an iterator of etl or "
                "etl.fit, in the thread that set this, or call etl.runtime.batch_boundary() after each batch."
            )
        # Other code may ask for collections under any policy.
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
    """Make several times as many objects as the threshold.

    Returns a sentence on what happened, the number of collections, and the number of objects.
    """
    count = min(MAX_PROBE_OBJECTS, max(MIN_PROBE_OBJECTS, 3 * gc.get_threshold()[0]))
    with CollectionWatch() as watch:
        kept = [[] for _ in range(count)]  # type: ignore[var-annotated]
        made = watch.count
    del kept
    return f"{made or 'no'} collections while {count:,} objects were made", made, count


def _disable(stack: ExitStack) -> None:
    stack.callback(gc.enable if gc.isenabled() else gc.disable)
    gc.disable()


def _full_collection() -> float:
    """Run a full collection and return its duration in seconds."""
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started


def _parse_window(policy: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"GC policy {policy!r}: a window is a number of milliseconds, such as window:500")
    return value


def _parse_thresholds(policy: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"GC policy {policy!r}: thresholds are three whole numbers, such as thresholds:700,10,10")
    return tuple(map(int, parts))
