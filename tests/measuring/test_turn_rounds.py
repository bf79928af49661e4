"""Turns: arms alternate with a base in processes of their round; other work and failures are told from results."""

from __future__ import annotations

import itertools
import math
import os
from functools import partial
from typing import Any

import psutil
import pytest

from etl.measuring.processes import MeasurementError, Server
from etl.measuring.same_work import DifferentWork
from etl.measuring.turn_rounds import (
    Arm,
    Contest,
    ContestTurns,
    Pairs,
    PairTurns,
    TurnRounds,
    Turns,
    cpus_of_round,
    take_blocks,
)
from etl.measuring.turns import OpenedArm
from tests.measuring.test_processes import COMMAND

BASE, RIVAL = "the base", "the rival"
START = [*COMMAND[:-1], "served_turns:prepare"]
FAILURE = "the rival cannot be measured: RuntimeError: it is broken"


def start(server: str, _: int) -> Server:
    return Server(server, START, {"does": None}, timeout=60.0)


def arm(server: str, seconds: float, digest: str = "equal", **more: Any) -> Arm:
    return Arm(server, {"seconds": seconds, "digest": digest, **more}, server, does_same_work=digest != "any")


def turns(opened: OpenedArm) -> dict[str, Turns]:
    return {"wall": Turns({"times": round(10 * opened.seconds["wall"])}, 0.0, 2)}


def test_every_rival_takes_turns_with_the_base_in_each_round_and_a_failure_is_its_result() -> None:
    rivals = {
        "twice": arm(RIVAL, 2.0),
        "broken": arm(RIVAL, 1.0, breaks=True),
        "other": arm("another", 0.5, digest="any"),
    }
    noted: dict[tuple[str, int], ContestTurns] = {}
    known = ContestTurns([])
    rounds = TurnRounds(
        ["one", "known"],
        lambda *_: Contest(arm(BASE, 1.0), rivals, turns, keeps_failures=True),
        start,
        [BASE, RIVAL],
        taken={"known": dict.fromkeys(range(2), known)},
        note=noted.__setitem__,
    )
    rounds.run(2)
    assert list(noted) == [("one", 0), ("one", 1)]
    assert noted == {("one", number): result for number, result in rounds.samples["one"].items()}
    servers = set()
    for result in noted.values():
        assert ContestTurns.from_json(result.to_json()) == result
        found = {each.rival: each for each in result.pairs}
        assert found.pop("broken") == PairTurns("broken", {}, [], FAILURE)
        # Two blocks, though there is no time for them.
        assert {name: each.blocks for name, each in found.items()} == {
            "twice": {"wall": [pytest.approx((10.0, 20.0))] * 2},
            "other": {"wall": [pytest.approx((10.0, 5.0))] * 2},
        }
        servers |= {*found["twice"].memory, *found["other"].memory}
    assert len(servers) == 6  # one for each arm in each round
    assert not any(psutil.pid_exists(each) for each in servers)


@pytest.mark.parametrize(
    ("base", "rival", "keeps_failures", "error", "said"),
    [
        ({}, {"breaks": True}, False, MeasurementError, FAILURE),
        ({"breaks": True}, {}, False, MeasurementError, "the base cannot be measured: RuntimeError: it is broken"),
        ({"breaks": True}, {}, True, MeasurementError, "the process of the base"),
        ({}, {"digest": "other"}, True, DifferentWork, "batches is other in the rival and equal in the base"),
    ],
)
def test_a_failure_that_is_no_result_and_other_work_are_raised(
    base: dict[str, Any], rival: dict[str, Any], keeps_failures: bool, error: type[Exception], said: str
) -> None:
    contest = Contest(arm(BASE, 1.0, **base), {"one": arm(RIVAL, 1.0, **rival)}, turns, keeps_failures)
    with pytest.raises(error, match=said):
        TurnRounds(["one"], lambda *_: contest, start, []).run(1)


def test_a_steady_drift_cancels_within_a_block_whichever_arm_begins() -> None:
    order: list[int] = []
    number = itertools.count()

    def ask(turn: int, request: dict[str, Any]) -> dict[str, Any]:
        order.append(turn)
        return {"seconds": request["unit"] * 1.01 ** next(number) * (1.5 if turn else 1.0)}

    pairs = Pairs(
        [take_blocks((partial(ask, 0), partial(ask, 1)), Turns({"unit": 2.0}, 0.0, 3), each) for each in (0, 1)]
    )
    assert order == [0, 1, 1, 0] * 3 + [1, 0, 0, 1] * 3
    assert pairs.log_ratios == pytest.approx([math.log(1.5)] * 2)
    assert pairs.medians[1] / pairs.medians[0] == pytest.approx(1.5)


def test_blocks_that_were_disturbed_do_not_move_their_pair() -> None:
    pairs = Pairs([[(1.0, 1.1)] * 4 + [(1.0, 9.0), (3.0, 1.1), (1.0, 5.0)]])
    assert pairs.log_ratios == [pytest.approx(math.log(1.1))]


def test_each_cpu_is_the_first_for_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 2, 7})
    assert [cpus_of_round(number, 1) for number in range(7)] == [[2], [2], [4], [4], [7], [7], [2]]
    assert cpus_of_round(4, 2) == [7, 2]
    assert cpus_of_round(3) == [4, 7, 2]
