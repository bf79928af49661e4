"""`PerformanceListener`: the iterations in a report, and metrics that agree with one another."""

from __future__ import annotations

import gc
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
from etl.training import Iteration, Performance

ALL_PARTS = {
    "report_etl": "ETL: 1.00 ms",
    "report_iteration": "iteration 0",
    "report_time": "iteration time: 4.00 ms",
    "report_samples": "samples/sec: 2000.0",
    "report_batches": "batches/sec: 250.00",
    "report_score": "score: 0.5",
    "report_gc": "GC: [gen0: 0 (0.00 ms)], [gen1: 0 (0.00 ms)], [gen2: 0 (0.00 ms)]",
    "report_device": "device: cpu",
}


def iteration(
    number: int, etl_ms: float = 1.0, compute_ms: float = 2.0, ms: float = 4.0, samples: int = 8
) -> Iteration:
    return Iteration(
        number=number,
        epoch=0,
        samples=samples,
        etl_seconds=etl_ms / 1000,
        compute_seconds=compute_ms / 1000,
        seconds=ms / 1000,
        score=torch.tensor(0.5),
        device="cpu",
    )


def follow(iterations: list[Iteration], frequency: int = 1, **parts: bool) -> tuple[list[str], list[Performance]]:
    """The lines and reports of a fit of `iterations`."""
    lines: list[str] = []
    reports: list[Performance] = []
    listener = etl.PerformanceListener(frequency, output=lines.append, on_report=reports.append, **parts)
    with etl.runtime.GcPolicy("off"):  # so that collections are those a test makes
        listener.fit_started()
        for each in iterations:
            listener.iteration_done(each)
        listener.fit_ended()
    return lines, reports


@pytest.mark.parametrize("alone", ALL_PARTS)
def test_every_part_of_the_line_can_be_shown_and_left_out(alone: str) -> None:
    lines, _ = follow([iteration(0)], **{part: part == alone for part in ALL_PARTS})
    assert lines == [ALL_PARTS[alone]]


def test_the_line_has_its_parts_in_the_order_of_the_documents() -> None:
    lines, _ = follow([iteration(0)], report_score=True, report_gc=True, report_device=False)
    assert lines == ["; ".join(text for part, text in ALL_PARTS.items() if part != "report_device")]


def test_score_and_collections_are_shown_only_when_asked_for() -> None:
    (line,), (report,) = follow([iteration(0)], report_device=False)
    assert "score" not in line
    assert "GC" not in line
    assert report.score is None


def test_no_device_is_named_unless_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for devices, named in ((0, False), (1, False), (2, True)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=devices: count)
        (line,), _ = follow([iteration(0)])
        assert line.startswith("device: cpu; ETL") is named


def test_times_are_means_over_all_iterations_since_the_last_report_and_are_not_floored() -> None:
    _, reports = follow([iteration(0, 900, 90, 1000), iteration(1, 1, 10, 20), iteration(2, 4.98, 29.98, 39.98)], 2)
    assert [round(report.etl_seconds * 1000, 9) for report in reports] == [900, 2.99]
    assert [round(report.compute_seconds * 1000, 9) for report in reports] == [90, 19.99]
    assert [round(report.iteration_seconds * 1000, 9) for report in reports] == [1000, 29.99]


def test_the_first_iteration_is_reported_alone_then_every_so_many_and_the_tail_at_the_end() -> None:
    lines, reports = follow([iteration(number) for number in range(9)], 3, report_device=False)
    assert [(report.iteration, report.iterations) for report in reports] == [(0, 1), (3, 3), (6, 3), (8, 2)]
    assert [re.findall(r"; iteration (\d+);", line) for line in lines] == [["0"], ["3"], ["6"], ["8"]]


def test_nothing_is_reported_twice_at_the_end() -> None:
    assert len(follow([iteration(number) for number in range(7)], 3)[1]) == 3
    assert follow([]) == ([], [])


@settings(max_examples=60)
@given(
    parts=st.lists(st.tuples(*[st.floats(0.001, 1e4)] * 3, st.integers(1, 512)), min_size=1, max_size=12),
    frequency=st.integers(1, 5),
)
def test_figures_of_every_report_agree_and_leave_nothing_out(
    parts: list[tuple[float, float, float, int]], frequency: int
) -> None:
    fed = [
        iteration(number, load, compute, load + compute + rest, samples)
        for number, (load, compute, rest, samples) in enumerate(parts)
    ]
    _, reports = follow(fed, frequency)
    assert sum(report.iterations for report in reports) == len(fed)
    reported = iter(fed)
    for report in reports:
        window = [next(reported) for _ in range(report.iterations)]
        rest = sum(each.seconds - each.etl_seconds - each.compute_seconds for each in window) / len(window)
        assert report.etl_seconds + report.compute_seconds + rest == pytest.approx(report.iteration_seconds)
        samples = sum(each.samples for each in window)
        assert report.samples_per_second == samples / sum(each.seconds for each in window)
        assert report.samples_per_second == pytest.approx(samples / len(window) / report.iteration_seconds)
        assert report.batches_per_second == pytest.approx(1 / report.iteration_seconds)


def test_an_iteration_too_short_for_the_clock_has_no_rate_rather_than_an_infinite_one() -> None:
    (line,), (report,) = follow([iteration(0, 0, 0, 0)], report_device=False)
    assert math.isnan(report.samples_per_second)
    assert math.isnan(report.batches_per_second)
    assert "inf" not in line
    assert "samples/sec: nan; batches/sec: nan" in line


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_a_collection_is_counted_in_its_generation_over_the_same_iterations_as_the_times(generation: int) -> None:
    reports: list[Performance] = []
    lines: list[str] = []
    listener = etl.PerformanceListener(3, report_gc=True, output=lines.append, on_report=reports.append)
    with etl.runtime.GcPolicy("off"):
        listener.fit_started()
        for number in range(7):
            if number in (1, 2):  # both in the window of iterations 1 to 3, neither in its last
                gc.collect(generation)
            listener.iteration_done(iteration(number))
        listener.fit_ended()
    counts = [[each.count for each in report.collections] for report in reports]
    assert counts == [[0, 0, 0], [2 if each == generation else 0 for each in range(3)], [0, 0, 0]]
    assert reports[1].collections[generation].seconds > 0
    assert f"[gen{generation}: 2 (" in lines[1]


def test_a_fit_counts_no_collection_from_before_it_or_from_the_fit_before() -> None:
    reports: list[Performance] = []
    listener = etl.PerformanceListener(output=lambda line: None, on_report=reports.append)
    with etl.runtime.GcPolicy("off"):
        gc.collect()
        for _ in range(2):
            listener.fit_started()
            listener.iteration_done(iteration(0))
            gc.collect()  # after the last report: no report of this fit can tell of it, and none of the next must
            listener.fit_ended()
            gc.collect()
    assert [sum(each.count for each in report.collections) for report in reports] == [0, 0]


def test_in_a_real_fit_the_parts_add_up_and_the_rates_are_those_of_the_times() -> None:
    reports: list[Performance] = []
    listener = etl.PerformanceListener(4, report_score=True, output=lambda line: None, on_report=reports.append)
    iterator = etl.AsyncIterator(etl.RawIterator([{"features": [0.5] * 8, "label": 1}] * 44, etl.Pipeline([]), 4))
    result = etl.fit(etl.models.create("mlp", (8,), 2), iterator, backend="cpu", listeners=[listener])
    assert [(report.iteration, report.iterations) for report in reports] == [(0, 1), (4, 4), (8, 4), (10, 2)]
    for report in reports:
        rest = report.iteration_seconds - report.etl_seconds - report.compute_seconds
        assert rest > -1e-9  # none in the first iteration, but for rounding
        assert min(report.etl_seconds, report.compute_seconds) > 0
        assert report.samples_per_second == pytest.approx(4 / report.iteration_seconds)
        assert report.score == result.scores[report.iteration]
        assert report.device == "cpu"
    assert listener.last is reports[-1]
    assert sum(report.iteration_seconds * report.iterations for report in reports) <= result.seconds


@pytest.mark.parametrize("frequency", [0, -1, 2.5, True, "10"])
def test_a_frequency_that_is_no_whole_number_above_0_is_refused(frequency: object) -> None:
    with pytest.raises(ValueError, match=f"frequency must be a whole number of at least 1, not {frequency!r}"):
        etl.PerformanceListener(frequency)  # type: ignore[arg-type]
