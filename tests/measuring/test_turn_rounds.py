"""Turns: arms alternate with a base in processes of their round; other work and failures are told from results."""

from __future__ import annotations

import itertools
import math
import os
from functools import partial
from typing import Any

import psutil
import pytest

from etl.measuring.processes import Server
from etl.measuring.same_work import DifferentWork
from etl.measuring.turn_rounds import Arm, Pair, Pairs, PairTurns, TurnRounds, Turns, cpus_of_round, take_blocks
from etl.measuring.turns import OpenedArm
from tests.measuring.test_processes import COMMAND

BASE, RIVAL = "the base", "the rival"
START = [*COMMAND[:-1], "served_turns:prepare"]


def start(server: str, _: int) -> Server:
    return Server(server, START, {"does": None}, timeout=60.0)


def pair(base: dict[str, Any], rival: dict[str, Any], server: str = RIVAL) -> Pair:
    """Return a pair of arms with these requests, whose turns have 10 epochs for each second of one."""
    a, b = (
        Arm(server, {"seconds": 1.0, "digest": "equal", **request}, server)
        for server, request in ((BASE, base), (server, rival))
    )

    def turns(opened: OpenedArm) -> dict[str, Turns]:
        return {"wall": Turns({"times": round(10 * opened.seconds["wall"])}, 0.0, 2)}

    return Pair(a, b, turns, is_same_work=rival.get("digest") != "any")


def test_the_arms_of_every_pair_take_turns_in_servers_of_the_round_that_pairs_share() -> None:
    pairs = {
        "twice": pair({}, {"seconds": 2.0}),
        "other": pair({}, {"seconds": 0.5, "digest": "any"}, "another"),
        "broken": pair({}, {"breaks": True}),
    }
    noted: dict[tuple[str, int], PairTurns] = {}
    rounds = TurnRounds(pairs, lambda name, _: pairs[name], start, note=noted.__setitem__)
    rounds.run(2)
    assert rounds.failed == {"broken": "the rival cannot be measured: RuntimeError: it is broken"}
    assert noted == {(name, number): one for name in pairs for number, one in rounds.samples[name].items()}
    servers = set()
    for number in range(2):
        twice, other = noted["twice", number], noted["other", number]
        # Two blocks, though there is no time for them.
        assert twice.blocks == {"wall": [pytest.approx((10.0, 20.0))] * 2}
        assert other.blocks == {"wall": [pytest.approx((10.0, 5.0))] * 2}
        assert PairTurns.from_json(twice.to_json()) == twice
        servers |= {*twice.memory, *other.memory}
    assert not any(psutil.pid_exists(each) for each in servers)
    # Two rounds of three servers. One more for either of the broken pair, unless that was the last to use it.
    assert 6 <= len(servers) <= 8


def test_a_pair_with_other_work_is_an_error() -> None:
    with pytest.raises(DifferentWork, match="batches is other in the rival and equal in the base"):
        TurnRounds(["one"], lambda *_: pair({}, {"digest": "other"}), start).run(1)


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
