"""All policies share rules: when they may be entered and audited, and that an error ends them."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import pytest

from etl.runtime import Audit, DeviceMemoryPolicy, GcPolicy, HeapPolicy, Policy, ThreadPolicy


@pytest.mark.parametrize(
    "policy",
    [GcPolicy("off"), HeapPolicy(), ThreadPolicy(1), DeviceMemoryPolicy()],
    ids=lambda policy: type(policy).__name__,
)
def test_a_policy_can_be_used_again_but_not_inside_itself_and_is_audited_only_inside(policy: Policy) -> None:
    for _ in range(2):
        with policy:
            with pytest.raises(RuntimeError, match="is in force already"), policy:
                pass
            policy.audit()
        with pytest.raises(RuntimeError, match="is not in force"):
            policy.audit()


class Noted(Policy):
    """A policy of two settings, the second of which may fail."""

    def __init__(self, fails: bool) -> None:
        self.restored: list[str] = []
        self._fails = fails

    def _put_in_force(self, stack: ExitStack) -> None:
        for setting in ("first", "second"):
            stack.callback(self.restored.append, setting)
            if self._fails and setting == "second":
                raise ArithmeticError

    def audit(self) -> Audit:
        raise NotImplementedError


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_policies_that_overlap_restore_the_settings_of_before_the_first(first_ends_first: bool) -> None:
    first, second = GcPolicy("off"), GcPolicy("off")
    first.__enter__()
    second.__enter__()
    order = (first, second) if first_ends_first else (second, first)
    order[0].__exit__()
    assert not gc.isenabled()
    order[1].__exit__()
    assert gc.isenabled()


@pytest.mark.parametrize("fails", [False, True], ids=["in the block", "on entering"])
def test_an_error_restores_all_settings_the_last_one_first(fails: bool) -> None:
    policy = Noted(fails)
    with pytest.raises(ArithmeticError), policy:
        raise ArithmeticError
    assert policy.restored == ["second", "first"]
