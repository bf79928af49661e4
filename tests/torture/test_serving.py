"""Requests from many threads, of many shapes, some of them wrong: each caller gets the answer to its own."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from etl.training import ParallelInference
from tests.torture.conftest import HowMany, Tally

CALLERS, WIDTHS, MOST_RECORDS, WRONG_SHARE = 64, (1, 3, 8), 4, 0.001
LIMIT_SECONDS = 3600.0


class Adds(torch.nn.Module):
    """Adds 1; refuses negative numbers. The rows of a batch are not mixed, so every sum is exact."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if (features < 0).any():
            raise ArithmeticError("a negative number")
        return features + 1


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_every_caller_gets_the_answer_to_its_own_request(mode: Any, how_many: HowMany, tally: Tally) -> None:
    each = how_many(50, 500_000 // CALLERS)
    outcomes = {"right": 0, "error of its own": 0}
    wrong: list[str] = []
    lock = threading.Lock()

    def call(caller: int, server: ParallelInference) -> None:
        drawn = random.Random(caller)
        for number in range(each):
            value = float(caller * each + number)
            if fails := drawn.random() < WRONG_SHARE or number == 7:
                value = -1.0 - value
            features = np.full((drawn.randint(1, MOST_RECORDS), drawn.choice(WIDTHS)), value, np.float64)
            try:
                answer = server.output(features)
                outcome = "right" if np.array_equal(answer, features + 1) and not fails else ""
            except ArithmeticError:
                outcome = "error of its own" if fails else ""
            with lock:
                if outcome:
                    outcomes[outcome] += 1
                else:
                    wrong.append(f"caller {caller}, request {number}")

    with ParallelInference(Adds(), workers=3, mode=mode, batch_limit=16, queue_limit=20, max_wait_ms=1) as server:
        callers = [threading.Thread(target=call, args=(caller, server), daemon=True) for caller in range(CALLERS)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(LIMIT_SECONDS)
        assert not any(thread.is_alive() for thread in callers)
        assert server.waiting == 0
    assert wrong == []
    assert sum(outcomes.values()) == CALLERS * each
    for outcome, times in outcomes.items():
        tally(f"{CALLERS} threads ask a server, {mode}", outcome, times)
