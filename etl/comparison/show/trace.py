"""The timelines of a report as a file for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is the JSON object format of the Trace Event Format,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etl.comparison.judge.report import ReportData, Timeline

COMPUTE = 0
Event = dict[str, Any]


def trace_events(report: ReportData) -> dict[str, Any]:
    """Return JSON values with one process per strategy: thread 0 is compute, all other threads load.

    Each process begins at time 0 with the first request for a batch. Times are in microseconds, as the format requires.
    """
    processes = enumerate(report.timelines, start=1)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"title": report.title, "started_at": report.started_at, "reference": report.reference},
        "traceEvents": [event for process, timeline in processes for event in _process(process, timeline)],
    }


def _process(process: int, timeline: Timeline) -> Iterator[Event]:
    threads = {thread: index for index, thread in enumerate(sorted({load[0] for load in timeline.loads}), start=1)}
    yield _metadata(process, COMPUTE, "process_name", {"name": timeline.strategy})
    yield _metadata(process, COMPUTE, "process_sort_index", {"sort_index": process})
    names = {COMPUTE: "compute", **{index: f"loading thread {index}" for index in threads.values()}}
    for thread, name in names.items():
        yield _metadata(process, thread, "thread_name", {"name": name})
        yield _metadata(process, thread, "thread_sort_index", {"sort_index": thread})
    for start, end in timeline.waits:
        yield _complete(process, COMPUTE, "stall", "stall", start, end)
    for start, end in timeline.computes:
        yield _complete(process, COMPUTE, "compute", "compute", start, end)
    for loading_thread, start, end, batch in timeline.loads:
        name = f"load batch {batch}"
        yield {**_complete(process, threads[loading_thread], name, "load", start, end), "args": {"batch": batch}}


def _metadata(process: int, thread: int, name: str, arguments: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}


def _complete(process: int, thread: int, name: str, category: str, start: float, end: float) -> Event:
    # Round both ends to nanoseconds, not the duration: then spans that touch do not overlap by rounding, which viewers
    # would show as nested calls.
    begin, stop = round(start * 1e9), round(end * 1e9)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": begin / 1000,
        "dur": (stop - begin) / 1000,
    }
