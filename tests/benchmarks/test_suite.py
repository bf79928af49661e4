"""Operations that are timed in turns: each as often as the others, in another order every time."""

from __future__ import annotations

import pytest

from benchmarks import gather, suite
from benchmarks.suite import TimedSuite, Timings, in_rounds
from benchmarks.write import measure_writers


def test_an_operation_is_run_in_every_pass_and_its_fastest_is_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_seconds", lambda operation: operation())
    run: list[str] = []
    takes = {"one": iter([5.0, 3.0, 4.0, 9.0, 8.0, 7.0]), "other": iter([1.0, 2.0, 1.5, 0.5, 2.5, 3.5])}

    def operation(name: str) -> float:
        run.append(name)
        return next(takes[name])

    results = in_rounds({name: lambda name=name: operation(name) for name in takes}, rounds=2, passes=3)  # type: ignore[misc]
    assert results == {"one": [3.0, 7.0], "other": [1.0, 0.5]}
    turns = [tuple(run[first : first + 2]) for first in range(0, len(run), 2)]
    assert all(sorted(turn) == ["one", "other"] for turn in turns)
    assert len(turns) == 6
    assert len(set(turns)) == 2


def test_every_writer_has_a_sample_of_every_round() -> None:
    results = measure_writers(["presave", "decoder"], 3, lambda writer, jobs: {"seconds": float(len(writer) + jobs)})
    assert results == {
        (writer, jobs): [{"seconds": float(len(writer) + jobs)}] * 3
        for writer in ("presave", "decoder")
        for jobs in (1, 2)
    }


def test_a_metric_whose_operations_were_not_timed_is_not_available() -> None:
    class Part(TimedSuite):
        def operations(self, name: str) -> tuple[str, ...]:
            return name, "limit"

    cache: Timings = {"one": [1.0], "limit": [1.0]}
    Part().setup(cache, "one")
    with pytest.raises(NotImplementedError, match=r"not at this commit or in this environment: other$"):
        Part().setup(cache, "other")


@pytest.mark.parametrize("rows", ["100", "0"])
def test_rows_that_do_not_fill_batches_are_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gather.main(["--rows", rows])
    assert f"--rows must be a positive multiple of 64, not {rows}" in capsys.readouterr().err
