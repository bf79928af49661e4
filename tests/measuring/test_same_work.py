"""Arms that did other work are not compared, and the error names both and what differs."""

from __future__ import annotations

import pytest

from etl.measuring.same_work import DifferentWork, DoneWork, check_same_work

DONE = DoneWork(20, "a", 2.3)


@pytest.mark.parametrize("other", [DONE, DoneWork(20, "a", 2.3001), DoneWork(20, "a", None)])
def test_the_same_work_may_have_a_score_that_was_added_in_another_order(other: DoneWork) -> None:
    check_same_work("one", other, "two", DONE)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (DoneWork(19, "a", 2.3), "the number of records is 19 in one and 20 in two"),
        (DoneWork(20, "b", 2.3), "the digest of the batches is b in one and a in two"),
        (DoneWork(20, "a", 2.4), "the score is 2.4 in one and 2.3 in two"),
    ],
)
def test_what_differs_is_named_with_both_arms(other: DoneWork, said: str) -> None:
    with pytest.raises(DifferentWork, match=f"not the same work: {said}, so their times cannot be compared"):
        check_same_work("one", other, "two", DONE)
