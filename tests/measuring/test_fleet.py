"""Servers that are asked at the same time: one failure ends all, and it is that which came first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from etl.measuring.fleet import Fleet
from etl.measuring.processes import MeasurementError, NoAnswerError, Server
from tests.measuring.test_processes import COMMAND
from tests.worker_processes import is_running

LONG = 60.0


@pytest.fixture(scope="module")
def servers() -> Iterator[Fleet]:
    """Two servers, which are replaced when one fails."""
    made = Fleet(lambda number: Server(f"rank {number}", COMMAND, {"does": None}, timeout=LONG), 2)
    yield made
    made.close()


def test_all_answer_at_the_same_time_and_again_and_the_first_one_alone(servers: Fleet) -> None:
    first = servers.sample("raw", {"does": None}, LONG)["pid"]
    for _ in range(2):
        answers = servers.sample_all("raw", [{"does": None}] * 2, LONG)
        assert len({first, *(each["pid"] for each in answers)}) == 3  # each in a process of its own


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("raise", "rank 1 of 2: raw cannot be measured: RuntimeError: it is broken"),
        ("die", r"rank 1 of 2: the process of raw was killed by signal 9"),
    ],
)
def test_one_that_fails_is_named_and_those_that_wait_for_it_are_killed(servers: Fleet, does: str, message: str) -> None:
    waiting = servers.sample("raw", {"does": None}, LONG)["pid"]
    started = time.monotonic()
    with pytest.raises(MeasurementError, match=message):
        servers.sample_all("raw", [{"does": "hang"}, {"does": does}], LONG)
    assert time.monotonic() - started < LONG / 2
    assert not is_running(waiting)
    assert len(servers.sample_all("raw", [{"does": None}] * 2, LONG)) == 2  # by new servers


def test_one_that_does_not_answer_is_named_before_one_that_waits_for_it(
    servers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.measuring.fleet.WAITING_PLACES", ("in wait_for_others",))
    with pytest.raises(NoAnswerError, match="rank 1 of 2"):
        servers.sample_all("raw", [{"does": "wait"}, {"does": "hang"}], 1.0)
