"""The table of collections by objects: heaps have the size they claim, and collections skip frozen objects."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.studies import gc_pauses


@pytest.mark.parametrize("shape", gc_pauses.SHAPES)
def test_a_heap_has_as_many_objects_as_it_says(shape: str) -> None:
    found = gc_pauses.pause(shape, 20_000)
    assert 19_900 <= found.tracked <= 20_200
    assert len(found.seconds) == len(found.frozen) == gc_pauses.REPEATS
    assert statistics.median(found.frozen) < statistics.median(found.seconds)


def test_a_heap_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gc_pauses, "MAX_NBYTES_EACH", 10**15)
    assert gc_pauses.main(["--samples", str(tmp_path / "pauses.jsonl")]) == 2
    assert "10,000 objects may take" in capsys.readouterr().err


def test_the_table_has_the_numbers_of_objects_that_are_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "pauses.jsonl"
    assert gc_pauses.main(["--most", "10000", "--samples", str(journal)]) == 0
    assert "10,000" in capsys.readouterr().out
    with journal.open("a") as file:
        file.write('{"key": [100000, "records"], "result": {"seconds": [0.1], "frozen": [0.1], "tracked": 100000}}\n')
    heading, _, line = gc_pauses.render(journal).splitlines()
    assert "| records |" in heading
    assert line.startswith("| 10,000 | ")
