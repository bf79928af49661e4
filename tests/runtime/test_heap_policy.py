"""`HeapPolicy` keeps freed memory in the process, which page faults show, and restores glibc."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from etl.runtime import HeapPolicy
from tests.programs import output_of

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc"
)

MIB = 1 << 20
ROUNDS = 2
LARGE, SMALL = 64 * MIB, MIB
# Pages of 4 KiB; numpy must not ask for huge pages, since the same arrays would take 512 times fewer of them.
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


def run(code: str, **environment: str) -> dict[str, Any]:
    """Run `code` in its own process, so that this one's allocator is left alone, and return its `seen`."""
    program = f"{PRELUDE}\n{code}\njson.dump(seen, sys.stdout)"
    found: dict[str, Any] = json.loads(output_of("-c", program, NUMPY_MADVISE_HUGEPAGE="0", **environment))
    return found


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Page faults of twice 64 MiB allocated and freed, before, under, and after the policies; their audits."""
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
with HeapPolicy("default") as policy:
    seen["default effect"] = policy.audit().effect
with HeapPolicy("retain") as policy:
    seen["retain effect"], seen["inert"] = policy.audit().effect, policy.audit().is_inert
    from etl.runtime import glibc
    glibc.set_option(glibc.c_library(), glibc.M_TRIM_THRESHOLD, 1 << 17)  # as other code might
    seen["alarm after other code took it back"] = policy.audit().alarm
""".replace("{SMALL}", str(SMALL))
    )


def few(faults: int) -> bool:
    return faults < PAGES // 100


def test_retain_makes_page_faults_of_large_arrays_fall_to_almost_none(seen: dict[str, Any]) -> None:
    assert not few(seen["before"])
    assert few(seen["retain"])


def test_default_changes_nothing(seen: dict[str, Any]) -> None:
    assert not few(seen["default"])
    assert few(seen["default in retain"])


def test_leaving_an_inner_retain_leaves_the_outer_in_force(seen: dict[str, Any]) -> None:
    assert few(seen["nested"])
    assert few(seen["after the inner"])


def test_leaving_gives_free_pages_back_and_maps_large_arrays_afresh_again(seen: dict[str, Any]) -> None:
    assert seen["resident in retain"] - seen["resident after"] >= LARGE // 2
    assert not few(seen["after"])


def test_after_leaving_small_arrays_fault_no_more_than_before(seen: dict[str, Any]) -> None:
    # glibc's nominal defaults, set by hand, would map each of them afresh: 256 faults an array. Before the policy,
    # that depends on what the process had freed until then.
    assert seen["small after"] <= max(seen["small before"], SMALL // 4096)


def test_an_unknown_policy_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(
        ValueError, match="unknown heap policy 'keep'; known: default, retain, preallocate:SIZE, limit:SIZE"
    ):
        HeapPolicy("keep")


def test_preallocate_has_the_memory_resident_even_if_it_was_there_before_and_gives_it_back() -> None:
    seen = run(
        """
before = resident()
with HeapPolicy("preallocate:128MiB") as policy:
    seen["grown"] = resident() - before
    seen["faults"] = faults()
    seen["audit"] = str(policy.audit())
    seen["inert"] = policy.audit().is_inert
seen["after"] = resident() - before
with HeapPolicy("retain"):
    np.ones(256 << 20, np.uint8)  # freed, and kept: this is preallocated memory, too
    with HeapPolicy("preallocate:128MiB") as policy:
        seen["alarm about what was there"] = policy.audit().alarm
try:
    with HeapPolicy("preallocate:1000TB"): pass
except MemoryError as error:
    seen["refused"] = str(error)
"""
    )
    assert seen["grown"] > 125 * MIB
    assert few(seen["faults"])
    assert not seen["inert"]
    assert "134,217,728 bytes were resident at the start" in seen["audit"]
    assert seen["after"] < 50 * MIB
    assert seen["alarm about what was there"] == ""
    assert seen["refused"].startswith("heap policy 'preallocate:1000TB': of 1,000,000,000,000,000 bytes")


def test_a_limit_is_an_error_when_memory_would_go_beyond_it() -> None:
    seen = run(
        """
import resource
before = resource.getrlimit(resource.RLIMIT_DATA)
with HeapPolicy("limit:2GiB") as policy:
    kept = np.ones(64 << 20, np.uint8)
    try:
        np.ones(3 << 30, np.uint8)
    except MemoryError as error:
        seen["refused"] = type(error).__name__
    seen["audit"] = str(policy.audit())
    seen["inert"] = policy.audit().is_inert
    resource.setrlimit(resource.RLIMIT_DATA, before)
    seen["inert after other code lifted it"] = policy.audit().is_inert
seen["restored"] = resource.getrlimit(resource.RLIMIT_DATA) == before
try:
    with HeapPolicy("limit:1MB"): pass
except RuntimeError as error:
    seen["too low"] = str(error)
"""
    )
    assert "MemoryError" in seen["refused"]
    assert "in force RLIMIT_DATA of 2,147,483,648 bytes" in seen["audit"]
    assert not seen["inert"]
    assert seen["inert after other code lifted it"]
    assert seen["restored"]
    assert "bytes of data already" in seen["too low"]


def test_retain_is_audited_by_what_it_does(seen: dict[str, Any]) -> None:
    assert seen["default effect"].endswith("is given back when freed")
    assert seen["retain effect"].endswith("stays in the process when freed")
    assert not seen["inert"]
    alarm = "given back to the system all the same: other code has called mallopt"
    assert alarm in seen["alarm after other code took it back"]


def test_another_malloc_is_refused(tmp_path: Path) -> None:
    code = tmp_path / "other.c"
    code.write_text(
        "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n"
        "void *malloc(size_t n) { return __libc_malloc(n); }\n"
    )
    library = tmp_path / "libother.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
    seen = run(
        """
try:
    with HeapPolicy("retain"): pass
except RuntimeError as error:
    seen["refused"] = str(error)
with HeapPolicy("default"): pass
""",
        LD_PRELOAD=str(library),
    )
    assert (
        seen["refused"]
        == f"heap policy 'retain' needs glibc's malloc; that of this process is in {library}: use 'default'"
    )


@pytest.mark.parametrize("policy", ["preallocate:", "preallocate:-1GB", "limit:lots", "limit:0"])
def test_a_size_that_is_none_is_refused(policy: str) -> None:
    with pytest.raises(ValueError, match=f"heap policy '{policy}': a size is"):
        HeapPolicy(policy)
