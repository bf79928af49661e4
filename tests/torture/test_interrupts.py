"""Interrupts (Ctrl-C) at random moments of every kind of iterator: the next epoch is right, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import output_of
from tests.torture.conftest import HowMany, Tally
from tests.torture.interrupted import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_works_after_interrupts_at_any_moment(
    kind: str, tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    command = ("-m", "tests.torture.interrupted", kind, str(how_many(40, 1500)), tmp_path)
    result = json.loads(output_of(*command, timeout=how_many(120, 1200)))
    tally(f"Ctrl-C at random moments, {kind}", "the next epoch is right", result["sent"])
    assert not result["faults"]
    assert result["seen"] == result["sent"]
