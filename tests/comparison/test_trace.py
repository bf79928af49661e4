"""The trace of a comparison follows the Trace Event Format, and has the spans of the timelines."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from etl.comparison.show.trace import trace_events
from tests import comparison_reports
from tests.comparison_reports import REPORTS, timeline

METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def load(name: str) -> dict[str, Any]:
    """Return the trace of the report `name` as read from a file; standard JSON has no NaN."""
    content = json.dumps(trace_events(REPORTS[name]()), allow_nan=False)
    trace: dict[str, Any] = json.loads(content.encode("utf-8"))
    return trace


@pytest.mark.parametrize("name", ["everything", "little_measured", "hostile"])
def test_events_have_the_fields_that_the_format_asks_for_and_those_of_one_thread_never_overlap(name: str) -> None:
    trace = load(name)
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    spans = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        thread = (event["pid"], event["tid"])
        assert {type(each) for each in thread} == {int}
        if event["ph"] == "M":
            field, kind = METADATA[event["name"]]
            assert set(event["args"]) == {field}
            assert type(event["args"][field]) is kind
            if event["name"] == "thread_name":
                named.add(thread)
        else:
            assert event["ph"] == "X"
            assert isinstance(event["cat"], str)
            assert min(event["ts"], event["dur"]) >= 0
            spans[thread].append((round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)))
    assert named == spans.keys()
    for times in spans.values():
        times.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_a_strategy_is_a_process_and_its_seconds_are_microseconds() -> None:
    report = comparison_reports.photographs()
    events = load("photographs")["traceEvents"]
    processes = {each["args"]["name"]: each["pid"] for each in events if each["name"] == "process_name"}
    assert list(processes) == [each.name for each in report.strategies]
    ahead = [each for each in events if each["pid"] == processes["async-raw"] and each["ph"] == "X"]
    first = {each["name"]: each for each in reversed(ahead)}
    assert (first["stall"]["tid"], first["stall"]["ts"], first["stall"]["dur"]) == (0, 0, 131_000)
    assert (first["compute"]["tid"], first["compute"]["ts"], first["compute"]["dur"]) == (0, 131_000, 118_000)
    assert (first["load batch 1"]["tid"], first["load batch 1"]["ts"]) == (1, 131_000)
    assert first["load batch 1"]["args"] == {"batch": 1}
    assert sum(each["cat"] == "load" for each in ahead) == 16


def test_loading_threads_are_numbered_from_one_whatever_their_identifiers() -> None:
    made = timeline("async-raw", 0.0, 0.1, 0.2)
    moved = replace(made, loads=[(7000 + batch % 2, start, end, batch) for _, start, end, batch in made.loads])
    events = trace_events(replace(comparison_reports.photographs(), timelines=[moved]))["traceEvents"]
    threads = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert threads == {0: "compute", 1: "loading thread 1", 2: "loading thread 2"}
    assert {each["tid"] for each in events if each["name"] == "load batch 3"} == {2}
