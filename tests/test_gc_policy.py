"""`GcPolicy` does to the garbage collector what its name says, and puts it back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from etl.runtime import CollectionWatch, GcPolicy

POLICIES = ("default", "off", "freeze")


@pytest.fixture(autouse=True)
def as_python_starts() -> Iterator[None]:
    """The collector on and nothing frozen, whatever a test leaves."""
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()


class Node:
    """An object in a cycle with itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def allocate_many_cycles() -> None:
    for _ in range(20 * gc.get_threshold()[0]):
        Node()


def automatic_collections() -> int:
    with CollectionWatch() as watch:
        allocate_many_cycles()
        return sum(each.count for each in watch.take())


def collector() -> tuple[bool, int]:
    return gc.isenabled(), gc.get_freeze_count()


def test_off_runs_no_collection_however_many_cycles_are_allocated() -> None:
    assert automatic_collections() > 0
    with GcPolicy("off"):
        assert automatic_collections() == 0
    assert automatic_collections() > 0


def test_freeze_takes_what_is_alive_out_of_collections() -> None:
    node = Node()
    watched = weakref.ref(node)
    with GcPolicy("freeze"):
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
        del node
        gc.collect()
        assert watched() is not None
        assert not any(each is watched() for each in gc.get_objects())
    gc.collect()
    assert watched() is None


def test_freeze_still_collects_what_is_new() -> None:
    with GcPolicy("freeze"):
        watched = weakref.ref(Node())
        gc.collect()
        assert watched() is None


def test_freeze_collects_first_so_that_no_garbage_is_kept() -> None:
    gc.disable()
    watched = weakref.ref(Node())
    assert watched() is not None
    with GcPolicy("freeze"):
        assert watched() is None


def test_default_changes_nothing() -> None:
    before = collector()
    with GcPolicy():
        assert collector() == before
        assert automatic_collections() > 0
    assert collector() == before


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_leaving_restores_what_was_found(policy: str, enabled: bool) -> None:
    if not enabled:
        gc.disable()
    with GcPolicy(policy):
        pass
    assert collector() == (enabled, 0)


@pytest.mark.parametrize("inner", POLICIES)
@pytest.mark.parametrize("outer", POLICIES)
def test_leaving_the_inner_policy_leaves_the_outer_in_force(outer: str, inner: str) -> None:
    with GcPolicy(outer):
        enabled, frozen = collector()
        with GcPolicy(inner):
            pass
        assert gc.isenabled() is enabled
        assert (gc.get_freeze_count() > 0) is (frozen > 0)
    assert collector() == (True, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_error_in_the_block_restores_too(policy: str) -> None:
    with pytest.raises(KeyError), GcPolicy(policy):
        raise KeyError
    assert collector() == (True, 0)


def test_one_policy_can_be_used_again_but_not_inside_itself() -> None:
    policy = GcPolicy("off")
    for _ in range(2):
        with policy:
            with pytest.raises(RuntimeError, match="in force already"), policy:
                pass
            assert not gc.isenabled()
        assert gc.isenabled()


def test_an_unknown_policy_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(ValueError, match="unknown GC policy 'frozen'; known: default, off, freeze"):
        GcPolicy("frozen")


def test_off_leaves_the_collector_off_where_it_was_off_even_if_the_block_turned_it_on() -> None:
    gc.disable()
    try:
        with GcPolicy("off"):
            gc.enable()
        assert not gc.isenabled()
    finally:
        gc.enable()
