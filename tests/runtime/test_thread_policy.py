"""`ThreadPolicy` limits the threads of every pool that computes, and restores them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import etl
from etl.runtime import ThreadPolicy, thread_policy
from etl.runtime.resources import available_cores, available_cpus
from tests.programs import output_of

Pools = dict[str, int]


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """A number that no policy here asks for, so that a restored number differs from one that never changed."""
    np.ones((2, 2)) @ np.ones((2, 2))
    found, found_cv2 = torch.get_num_threads(), cv2.getNumThreads()
    with threadpool_limits(limits=3):
        torch.set_num_threads(3)
        cv2.setNumThreads(3)
        yield
    torch.set_num_threads(found)
    cv2.setNumThreads(found_cv2)


def pools() -> Pools:
    """Threads of each native pool, of torch's operations and of OpenCV."""
    found = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    return {**found, "torch": torch.get_num_threads(), "opencv": cv2.getNumThreads()}


@pytest.mark.parametrize("compute", [1, 2])
def test_every_pool_has_the_threads_asked_for(compute: int) -> None:
    with ThreadPolicy(compute):
        limited = pools()
    assert len(limited) >= 2
    assert set(limited.values()) == {compute}


def test_leaving_the_inner_policy_leaves_the_outer_in_force() -> None:
    before = pools()
    with ThreadPolicy(2):
        outer = pools()
        with ThreadPolicy(1):
            assert set(pools().values()) == {1}
        assert pools() == outer
    assert pools() == before


def test_torch_is_not_loaded_to_be_limited() -> None:
    program = "import sys, etl\nwith etl.runtime.ThreadPolicy(1): pass\nprint('torch' in sys.modules)"
    assert output_of("-c", program) == "False\n"


@pytest.mark.parametrize("compute", [0, -1, 1.0, True, "2"])
def test_threads_that_are_no_whole_number_above_0_are_refused(compute: object) -> None:
    with pytest.raises(ValueError, match=f"compute threads must be a whole number of at least 1, not {compute!r}"):
        ThreadPolicy(compute)  # type: ignore[arg-type]


def test_compute_is_what_loading_leaves_of_the_cpus() -> None:
    cores = available_cores() or available_cpus()
    assert ThreadPolicy().compute == cores
    assert ThreadPolicy(loaders=1).compute == max(1, min(cores, available_cpus() - 1))


def test_logical_cpus_of_one_core_are_left_to_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_policy, "rank_cpus", lambda: 8)
    monkeypatch.setattr(thread_policy, "rank_cores", lambda: 4)
    assert ThreadPolicy().compute == 4
    assert ThreadPolicy(loaders=4).compute == 4
    assert ThreadPolicy(loaders=6).compute == 2
    monkeypatch.setattr(thread_policy, "rank_cores", lambda: None)  # the system does not say
    assert ThreadPolicy().compute == 8
    assert ThreadPolicy(loaders=1000).compute == 1


def test_an_asynchronous_iterator_has_the_threads_that_the_policy_leaves_to_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_policy, "rank_cpus", lambda: 8)
    plain = etl.RawIterator([{"features": np.zeros(1, np.float32), "label": 0}], etl.Pipeline([]))
    loader = etl.AsyncIterator(plain)
    assert loader.threads == 8
    with ThreadPolicy(3):
        assert loader.threads == 5
        with ThreadPolicy(1, loaders=3):
            assert loader.threads == 3
        assert loader.threads == 5
    with ThreadPolicy(9):
        assert loader.threads == 1
        assert etl.AsyncIterator(plain, threads=7).threads == 7
        assert etl.AsyncIterator(plain, 0).threads == 0
    assert loader.threads == 8


def test_the_audit_reads_the_threads_back() -> None:
    with ThreadPolicy(1) as policy:
        audit = policy.audit()
        assert not audit.is_inert
        assert {part.rpartition(" ")[2] for part in audit.in_force.split(", ")} == {"1"}
        assert "torch 1" in audit.in_force
        torch.set_num_threads(3)  # as other code might
        alarm = policy.audit().alarm
        assert alarm.startswith("compute threads were to be 1, and ")
        assert "torch has 3 now." in alarm
        assert "such as a call of torch.set_num_threads: remove it" in alarm


def test_opencv_keeps_the_one_thread_that_a_loader_has_given_it() -> None:
    cv2.setNumThreads(1)
    with ThreadPolicy(2) as policy:
        assert cv2.getNumThreads() == 1
        assert policy.audit().alarm == ""
    assert cv2.getNumThreads() == 1


def test_a_library_that_is_loaded_later_with_more_threads_is_an_alarm_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "cv2")
    with ThreadPolicy(2) as policy:
        monkeypatch.setitem(sys.modules, "cv2", cv2)
        assert policy.audit().alarm == (
            "compute threads were to be 2, and opencv has 3, loaded or set later. Import that library before, or give "
            "it 2 yourself."
        )


def test_what_other_threads_of_the_process_compute_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if they always took two and a half CPUs.
    monkeypatch.setattr(time, "process_time", lambda: 2.5 * time.perf_counter())
    with ThreadPolicy(1) as policy:
        assert policy.audit().alarm == ""


def test_a_product_that_takes_more_cpus_than_threads_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the product took two and a half CPUs, and waiting none.
    waited = 0.0
    sleep = time.sleep

    def wait(seconds: float) -> None:
        nonlocal waited
        started = time.perf_counter()
        sleep(seconds)
        waited += time.perf_counter() - started

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(time, "process_time", lambda: 2.5 * (time.perf_counter() - waited))
    with ThreadPolicy(1) as policy:
        assert re.search(r"a product of numpy's takes 2\.\d CPUs", policy.audit().alarm)
        assert "Start Python with OMP_NUM_THREADS" in policy.audit().alarm


def test_more_threads_than_cpus_are_said_to_be() -> None:
    many = available_cpus() + 2
    with ThreadPolicy(many) as policy:
        assert policy.audit().effect.endswith(f"fewer than {many} threads")


# The loader holds the GIL and waits for the linker's lock. A thread that lists libraries by a callback of the linker
# would hold the linker's lock and wait for the GIL.
LOADING = """
import sys, threading, _ctypes
from pathlib import Path
import numpy
from etl.runtime import ThreadPolicy

library = str(next(Path(numpy.__file__).parent.glob("_core/_multiarray_tests*.so")))
is_over = threading.Event()

def load():
    while not is_over.is_set():
        _ctypes.dlclose(_ctypes.dlopen(library, 2))

thread = threading.Thread(target=load)
thread.start()
for _ in range(20):
    with ThreadPolicy(1):
        pass
is_over.set()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another linker")
def test_another_thread_may_load_libraries_meanwhile() -> None:
    output_of("-c", LOADING)
