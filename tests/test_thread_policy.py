"""`ThreadPolicy` limits the threads of every pool that computes, and puts them back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from etl.runtime import ThreadPolicy

Pools = dict[str, int]


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """A number that no policy here asks for, so that a restored one is told from one that never changed."""
    np.ones((2, 2)) @ np.ones((2, 2))
    found = torch.get_num_threads()
    with threadpool_limits(limits=3):
        torch.set_num_threads(3)
        yield
    torch.set_num_threads(found)


def pools() -> Pools:
    """Threads of each native pool, and of torch's operations."""
    found = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    return {**found, "torch": torch.get_num_threads()}


@pytest.mark.parametrize("compute", [1, 2])
def test_every_pool_has_the_threads_asked_for(compute: int) -> None:
    with ThreadPolicy(compute):
        limited = pools()
    assert len(limited) >= 2
    assert set(limited.values()) == {compute}


def test_leaving_restores_what_was_found() -> None:
    before = pools()
    with ThreadPolicy(1):
        assert pools() != before
    assert pools() == before


def test_leaving_the_inner_policy_leaves_the_outer_in_force() -> None:
    before = pools()
    with ThreadPolicy(2):
        outer = pools()
        with ThreadPolicy(1):
            assert set(pools().values()) == {1}
        assert pools() == outer
    assert pools() == before


def test_an_error_in_the_block_restores_too() -> None:
    before = pools()
    with pytest.raises(KeyError), ThreadPolicy(1):
        raise KeyError
    assert pools() == before


def test_one_policy_can_be_used_again_but_not_inside_itself() -> None:
    before = pools()
    policy = ThreadPolicy(1)
    for _ in range(2):
        with policy, pytest.raises(RuntimeError, match="in force already"), policy:
            pass
        assert pools() == before


def test_torch_is_not_loaded_to_be_limited() -> None:
    code = (
        "import sys; from etl.runtime import ThreadPolicy\nwith ThreadPolicy(1): pass\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("compute", [0, -1, 1.0, True, "2"])
def test_threads_that_are_no_whole_number_above_0_are_refused(compute: object) -> None:
    with pytest.raises(ValueError, match=f"compute threads must be a whole number of at least 1, not {compute!r}"):
        ThreadPolicy(compute)  # type: ignore[arg-type]
