"""Worker processes take over the runtime policies that are in force when they start."""

from __future__ import annotations

import gc
import resource
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import etl
from etl.runtime import CollectionWatch, GcPolicy, HeapPolicy, glibc
from etl.runtime.gc_policy import MIN_FROZEN
from etl.runtime.heap_policy import PROBE_NBYTES
from etl.sources import Record

ENABLED, THRESHOLD, FROZEN, LIMIT, RETAINED, COLLECTIONS = range(6)
RECORDS = 6
_watches: list[CollectionWatch] = []


class State:
    """Records of the state of the process that loads them."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Record:
        if not _watches:
            _watches.append(CollectionWatch())
            _watches[0].__enter__()
        found = [
            gc.isenabled(),
            gc.get_threshold()[0],
            gc.get_freeze_count(),
            resource.getrlimit(resource.RLIMIT_DATA)[0],
            glibc.freed_and_resident(glibc.c_library(), PROBE_NBYTES),
            _watches[0].count,
        ]
        return {"features": np.array(found, np.float64), "label": index}


def states(*policies: Any, start_method: str = "forkserver") -> np.ndarray:
    """Return the state of a worker process at each record, one row for each, under `policies` of this process."""
    raw = etl.RawIterator(State(), etl.Pipeline([]), 1, dtype="float64")
    with ExitStack() as in_force:
        for each in policies:
            in_force.enter_context(each)
        with etl.AsyncIterator(raw, workers="process", processes=1, start_method=start_method) as iterator:
            return np.stack([batch.features[0].copy() for batch in iterator])


def test_policies_that_have_ended_leave_a_worker_as_python_starts_it() -> None:
    with GcPolicy("off"), HeapPolicy("retain"):
        pass
    found = states()
    assert found[:, ENABLED].all()
    assert (found[:, FROZEN] < MIN_FROZEN).all()
    assert (found[:, RETAINED] <= PROBE_NBYTES // 2).all()
    assert (found[:, LIMIT] == resource.getrlimit(resource.RLIMIT_DATA)[0]).all()


def test_a_collector_is_off_and_memory_preallocated_in_a_new_interpreter() -> None:
    found = states(GcPolicy("off"), HeapPolicy("preallocate:256MB"), start_method="spawn")
    assert not found[:, ENABLED].any()
    assert (found[:, RETAINED] > PROBE_NBYTES // 2).all()


def test_thresholds_frozen_objects_and_a_limit_for_each_worker() -> None:
    found = states(GcPolicy("thresholds:12345,10,10"), GcPolicy("freeze"), HeapPolicy("limit:64GB"))
    assert (found[:, THRESHOLD] == 12345).all()
    assert (found[:, FROZEN] >= MIN_FROZEN).all()
    assert (found[:, LIMIT] == 64e9).all()


def test_a_window_collects_between_the_tasks_of_a_worker_that_retains_its_memory() -> None:
    found = states(GcPolicy("window:0"), HeapPolicy("retain"))
    assert not found[:, ENABLED].any()
    assert found[-1, COLLECTIONS] - found[0, COLLECTIONS] == RECORDS - 1
    assert (found[:, RETAINED] > PROBE_NBYTES // 2).all()


def test_a_policy_that_a_worker_cannot_take_over_ends_it_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.prefetch.worker_process.inherited_policies", lambda: [("GcPolicy", "sometimes")])
    with pytest.raises(RuntimeError, match=r"cannot take over the runtime policies of its parent: .*'sometimes'"):
        states()
