"""The policies of a process that its worker processes take over when they start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from etl.runtime.gc_policy import GcPolicy
from etl.runtime.heap_policy import HeapPolicy
from etl.runtime.policy import policies_in_force

# A policy as a worker process gets it: the name of its class, and its text.
Inherited = tuple[str, str]
_KINDS: dict[str, Any] = {"GcPolicy": GcPolicy, "HeapPolicy": HeapPolicy}


def inherited_policies() -> list[Inherited]:
    """Return the policies that are in force in this process, in the form that worker processes take.

    What is preallocated here is only retained there: each worker would otherwise occupy as much again.
    """
    collector = [("GcPolicy", each.policy) for each in policies_in_force(GcPolicy)]
    heap = [each.policy for each in policies_in_force(HeapPolicy)]
    return [*collector, *(("HeapPolicy", "retain" if each.startswith("preallocate") else each) for each in heap)]


@contextmanager
def inherit(policies: Sequence[Inherited]) -> Iterator[None]:
    """Put the `policies` of the parent process into force."""
    with ExitStack() as in_force:
        for kind, text in policies:
            in_force.enter_context(_KINDS[kind](text))
        yield
