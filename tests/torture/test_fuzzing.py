"""Files that are nearly what they should be: read, or refused as documented, and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.torture.attempts import attempt_all
from tests.torture.conftest import HowMany, Tally
from tests.torture.mutated_files import INPUTS, attempts_at


@pytest.mark.parametrize("name", INPUTS)
def test_mutated_inputs_are_read_or_refused_as_documented(
    name: str, tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    count = how_many(10, 100_000 // len(INPUTS))
    outcomes = attempt_all(partial(attempts_at, name), count, tmp_path)
    for outcome, times in outcomes.counts.items():
        tally(f"mutated input, {name}", outcome, times)
    assert not outcomes.faults, "\n\n".join(outcomes.faults)
    assert outcomes.counts.total() == count
