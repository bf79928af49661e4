"""`GcPolicy` configures the garbage collector as its name says, and restores it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

import etl
from etl.runtime import CollectionWatch, GcPolicy, batch_boundary

POLICIES = ("off", "freeze", "window:0", "thresholds:50,5,5")


@pytest.fixture(autouse=True)
def as_python_starts() -> Iterator[None]:
    """The collector on and nothing frozen, whatever a test leaves."""
    gc.enable()
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Leave the objects of all imports out of collections, which take a tenth of a second otherwise."""
    gc.freeze()
    yield
    gc.unfreeze()


class Node:
    """An object that refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def allocate_many_cycles() -> None:
    for _ in range(20 * gc.get_threshold()[0]):
        Node()


def automatic_collections() -> int:
    with CollectionWatch() as watch:
        allocate_many_cycles()
        return watch.count


def collector() -> tuple[bool, int, tuple[int, int, int], int]:
    return gc.isenabled(), gc.get_freeze_count(), gc.get_threshold(), len(gc.callbacks)


@pytest.mark.usefixtures("few_objects")
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
def test_leaving_by_an_error_restores_what_was_found(policy: str, enabled: bool) -> None:
    if not enabled:
        gc.disable()
    before = collector()
    with pytest.raises(KeyError), GcPolicy(policy):
        raise KeyError
    assert collector() == before


@pytest.mark.parametrize("inner", POLICIES)
@pytest.mark.parametrize("outer", POLICIES)
def test_leaving_the_inner_policy_leaves_the_outer_in_force(outer: str, inner: str) -> None:
    before = collector()
    with GcPolicy(outer):
        enabled, frozen, thresholds, _ = collector()
        with GcPolicy(inner):
            pass
        assert gc.isenabled() is enabled
        assert (gc.get_freeze_count() > 0) is (frozen > 0)
        assert gc.get_threshold() == thresholds
    assert collector() == before


def test_an_unknown_policy_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(
        ValueError, match="unknown GC policy 'frozen'; known: default, off, freeze, window:MS, thresholds:A,B,C"
    ):
        GcPolicy("frozen")


def test_off_leaves_the_collector_off_if_it_was_off_even_if_the_block_turned_it_on() -> None:
    gc.disable()
    with GcPolicy("off"):
        gc.enable()
    assert not gc.isenabled()


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("window:", "a number of milliseconds"),
        ("window:-1", "a number of milliseconds"),
        ("window:inf", "a number of milliseconds"),
        ("window:soon", "a number of milliseconds"),
        ("thresholds:700,10", "three whole numbers"),
        ("thresholds:700,10,-1", "three whole numbers"),
        ("off:1", "unknown GC policy"),
    ],
)
def test_a_number_that_is_none_is_refused(policy: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"'{policy}'.*{reason}|{reason} '{policy}'"):
        GcPolicy(policy)


def test_thresholds_are_those_of_the_collector() -> None:
    with GcPolicy("thresholds:50,5,5") as policy:
        assert gc.get_threshold() == (50, 5, 5)
        assert policy.audit().in_force.startswith("automatic collection on, thresholds 50,5,5")
        assert not policy.audit().is_inert
        gc.set_threshold(700, 10, 10)  # as other code might
        assert "and 700,10,10 are in force: something in this process calls gc.set_threshold()" in policy.audit().alarm


def test_thresholds_are_said_to_do_nothing_if_the_collector_is_off() -> None:
    gc.disable()
    with GcPolicy("thresholds:50,5,5") as policy:
        assert "automatic collection is off, so that they do nothing: call gc.enable()" in policy.audit().alarm


@pytest.mark.usefixtures("few_objects")
def test_collections_that_other_code_asks_for_are_no_alarm() -> None:
    with GcPolicy("window:1e9") as policy:
        for _ in etl.SyntheticIterator((2,), 2, batches=3, batch_size=2):
            gc.collect()
        audit = policy.audit()
    assert audit.effect == "0 collections between batches, 3 others"
    assert audit.alarm == ""


@pytest.mark.usefixtures("few_objects")
def test_a_window_collects_between_batches_and_never_within_one() -> None:
    loader = etl.SyntheticIterator((2,), 2, batches=5, batch_size=2)
    within: list[int] = []
    with CollectionWatch() as watch, GcPolicy("window:0") as policy:
        for _ in loader:
            watch.take()
            allocate_many_cycles()
            within.append(sum(each.count for each in watch.take()))
        # One before each batch, and one after the last.
        assert policy.audit().effect == "6 collections between batches, 0 others"
    assert within == [0] * 5


def test_a_window_waits_for_its_time() -> None:
    with GcPolicy("window:1e9") as policy:
        for _ in etl.SyntheticIterator((2,), 2, batches=5, batch_size=2):
            pass
        assert policy.audit().effect == "0 collections between batches, 0 others"
        assert not policy.audit().is_inert


def test_a_custom_loop_announces_its_boundaries() -> None:
    with GcPolicy("window:0") as policy:
        unseen = policy.audit()
        assert unseen.is_inert
        assert "no batch boundary was seen" in unseen.effect
        other = threading.Thread(target=batch_boundary)  # a loader's, at some moment within a step
        other.start()
        other.join()
        assert policy.audit().is_inert
        watched = weakref.ref(Node())
        batch_boundary()
        assert watched() is None
        assert not policy.audit().is_inert


def test_what_is_in_force_is_read_back() -> None:
    with GcPolicy("off") as policy:
        assert policy.audit().effect.startswith("no collections while")
        assert not policy.audit().is_inert
        gc.enable()
        assert policy.audit().is_inert
        assert "in force automatic collection on" in str(policy.audit())
        assert "something in this process calls gc.enable(). Remove that." in policy.audit().alarm
    with GcPolicy("freeze") as policy:
        assert not policy.audit().is_inert
        gc.unfreeze()
        assert policy.audit().is_inert
    with GcPolicy() as policy:
        assert not policy.audit().is_inert


def test_another_collector_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.implementation.name", "pypy")
    with GcPolicy("default"):
        pass
    with pytest.raises(RuntimeError, match="needs CPython's collector; pypy has another"), GcPolicy("off"):
        pass
    monkeypatch.setattr("sys.implementation.name", "cpython")
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: 1)
    with pytest.raises(RuntimeError, match="one threshold"), GcPolicy("thresholds:700,10,11"):
        pass
    assert gc.get_threshold()[2] != 11
