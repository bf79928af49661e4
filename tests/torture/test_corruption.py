"""No change to a store goes by unseen: verify finds it, and reading it anyway does no harm."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.torture.attempts import attempt_all
from tests.torture.conftest import HowMany, Tally
from tests.torture.corrupted_stores import CUT_OFF, EDITED, FLIPPED, KINDS, attempts

# Small and full.
TIMES = {FLIPPED: (6, 1_700), CUT_OFF: (2, 170), EDITED: (3, 170)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", TIMES)
def test_every_change_is_found_by_verify_and_none_crashes_who_reads_without(
    change: str, kind: str, tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    count = how_many(*TIMES[change])
    outcomes = attempt_all(partial(attempts, change, kind), count, tmp_path)
    for outcome, times in outcomes.counts.items():
        tally(f"store with {change}, {kind}", outcome, times)
    assert not outcomes.faults, "\n\n".join(outcomes.faults)
    assert outcomes.counts.total() == count
