"""Files that are nearly what they should be, and stores with one thing wrong: no change goes by unseen or does harm.

Mutated inputs are read, or refused as documented, and nothing else. Changes of stores are found by verify.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.torture.attempts import Attempts, attempt_all
from tests.torture.conftest import HowMany, Tally
from tests.torture.corrupted_stores import CUT_OFF, EDITED, FLIPPED, KINDS
from tests.torture.corrupted_stores import attempts as attempts_at_stores
from tests.torture.mutated_files import INPUTS
from tests.torture.mutated_input import attempts

# What is tried, and how often: small and full.
TRIED: dict[str, tuple[Callable[[Path], Attempts], tuple[int, int]]] = {
    **{
        f"store with {change}, {kind}": (partial(attempts_at_stores, change, kind), times)
        for change, times in {FLIPPED: (6, 1_700), CUT_OFF: (2, 170), EDITED: (3, 170)}.items()
        for kind in KINDS
    },
    **{
        f"mutated input, {name}": (partial(attempts, name, make), (10, 100_000 // len(INPUTS)))
        for name, make in INPUTS.items()
    },
}


@pytest.mark.parametrize("what", TRIED)
def test_every_change_is_found_or_read_as_documented(
    what: str, tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    make, times = TRIED[what]
    count = how_many(*times)
    outcomes = attempt_all(make, count, tmp_path)
    for outcome, found in outcomes.counts.items():
        tally(what, outcome, found)
    assert not outcomes.faults, "\n\n".join(outcomes.faults)
    assert outcomes.counts.total() == count
