"""`HeapPolicy` keeps freed memory in the process, which page faults show, and puts glibc back."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from etl.runtime import HeapPolicy

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc"
)

MIB = 1 << 20
ROUNDS = 4
LARGE, SMALL = 64 * MIB, MIB
# Four KiB to a page; numpy is kept from asking for huge pages, of which the same arrays would take 512 times fewer.
PAGES = LARGE * ROUNDS // 4096

PRELUDE = f"""
import json, resource, sys
import numpy as np
from etl.runtime import HeapPolicy

def faults(nbytes={LARGE}, rounds={ROUNDS}):
    np.ones(nbytes, np.uint8)  # the first may have to grow the heap
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        np.ones(nbytes, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

seen = {{}}
"""


def run(code: str) -> dict[str, int]:
    """What `code` put into `seen`, in a process of its own: the allocator of this one is left alone."""
    process = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}\n{code}\njson.dump(seen, sys.stdout)"],
        env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found: dict[str, int] = json.loads(process.stdout)
    return found


@pytest.fixture(scope="module")
def seen() -> dict[str, int]:
    """Page faults of four times 64 MiB allocated and freed, before, under, and after the policies."""
    return run(
        """
seen["before"] = faults()
seen["small before"] = faults({SMALL}, 100)
with HeapPolicy("default"):
    seen["default"] = faults()
with HeapPolicy("retain"):
    seen["retain"] = faults()
    with HeapPolicy("retain"):
        seen["nested"] = faults()
    seen["after the inner"] = faults()
    with HeapPolicy("default"):
        seen["default in retain"] = faults()
    seen["resident in retain"] = resident()
seen["resident after"] = resident()
seen["after"] = faults()
seen["small after"] = faults({SMALL}, 100)
try:
    with HeapPolicy("retain"):
        raise KeyError
except KeyError:
    seen["after an error"] = faults()
""".replace("{SMALL}", str(SMALL))
    )


def few(faults: int) -> bool:
    return faults < PAGES // 100


def test_retain_makes_page_faults_of_large_arrays_fall_to_almost_none(seen: dict[str, int]) -> None:
    assert not few(seen["before"])
    assert few(seen["retain"])


def test_default_changes_nothing(seen: dict[str, int]) -> None:
    assert not few(seen["default"])
    assert few(seen["default in retain"])


def test_leaving_an_inner_retain_leaves_the_outer_in_force(seen: dict[str, int]) -> None:
    assert few(seen["nested"])
    assert few(seen["after the inner"])


def test_leaving_gives_free_pages_back_and_maps_large_arrays_afresh_again(seen: dict[str, int]) -> None:
    assert seen["resident in retain"] - seen["resident after"] >= LARGE // 2
    assert not few(seen["after"])


def test_an_error_in_the_block_restores_too(seen: dict[str, int]) -> None:
    assert not few(seen["after an error"])


def test_after_leaving_small_arrays_fault_no_more_than_before(seen: dict[str, int]) -> None:
    # glibc's nominal defaults, set by hand, would map each of them afresh: 256 faults an array. Whether that was so
    # before depends on what the process had freed until then.
    assert seen["small after"] <= max(seen["small before"], SMALL // 4096)


def test_an_unknown_policy_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(ValueError, match="unknown heap policy 'keep'; known: default, retain"):
        HeapPolicy("keep")
