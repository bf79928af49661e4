"""The table of collections by objects: heaps have the size they claim, and collections skip frozen objects."""

from __future__ import annotations

import statistics
from pathlib import Path

import psutil
import pytest

from benchmarks.studies import gc_pauses


@pytest.mark.parametrize("shape", gc_pauses.SHAPES)
def test_a_heap_has_as_many_objects_as_it_says(shape: str) -> None:
    found = gc_pauses.pause(shape, 20_000)
    assert 19_900 <= found.tracked <= 20_200
    assert len(found.seconds) == len(found.frozen) == gc_pauses.REPEATS
    assert statistics.median(found.frozen) < statistics.median(found.seconds)


def test_a_heap_that_does_not_fit_into_memory_is_refused() -> None:
    objects = psutil.virtual_memory().total // 100
    with pytest.raises(MemoryError, match="are available"):
        gc_pauses.pause("empty lists", objects)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "pauses.jsonl"
    assert gc_pauses.main(["--most", "10000", "--samples", str(journal)]) == 0
    assert "10,000" in capsys.readouterr().out
    heading, _, line = gc_pauses.render(journal).splitlines()
    assert "| records |" in heading
    assert line.startswith("| 10,000 | ")
