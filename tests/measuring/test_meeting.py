"""Processes that meet wait for each other, and each learns the values of all."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from etl.measuring.meeting import Meeting

COUNT, ROUNDS = 3, 200


def test_all_learn_the_values_of_every_round(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    Meeting.create(path, COUNT)

    def take_part(rank: int) -> list[list[float]]:
        meeting = Meeting(path, rank)
        return [meeting.gather(100.0 * number + rank) for number in range(ROUNDS)]

    with ThreadPoolExecutor(COUNT) as pool:
        found = list(pool.map(take_part, range(COUNT)))
    expected = [[100.0 * number + rank for rank in range(COUNT)] for number in range(ROUNDS)]
    assert found == [expected] * COUNT


def test_a_process_waits_for_the_last(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    Meeting.create(path, 2)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        Meeting(path, 1).wait()
        os._exit(0)
    Meeting(path, 0).wait()
    assert time.monotonic() - started >= 0.2
    os.waitpid(child, 0)
