"""Turns: reading the time without the CPU is not tried forever."""

from __future__ import annotations

import pytest

from etl.measuring import turns
from etl.measuring.turns import seconds_of


def test_readings_that_always_take_too_long_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_READING_SECONDS", 0.0)
    runs: list[int] = []
    with pytest.raises(RuntimeError, match=f"schedstat .* {turns.MAX_TRIES} times in a row"):
        seconds_of(lambda: runs.append(1), is_one_thread=True)
    assert len(runs) == turns.MAX_TRIES
