"""The server side of turns: a process that has imported everything, and forks one for each thing that is measured.

It reads and answers lines of JSON. The first is what it prepares; then each starts a forked process, which answers
when it is ready, takes the turns it is asked for, and ends at `{}`. While it waits for a line it costs nothing.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.fork_ready import check_no_threads

# Without a buffer: the forked processes go on reading where this one stopped.
REQUESTS = 0
ANSWERS = 1

Request = dict[str, Any]
Turn = Callable[[Request], Request]
# What a forked process is for: its answer when it is ready, and what takes a turn.
OpenTurns = Callable[[Request], AbstractContextManager[tuple[Request, Turn]]]


def serve(prepare: Callable[[Request], tuple[Request, OpenTurns]]) -> None:
    """Answer requests until standard input ends."""
    with open(REQUESTS, "rb", buffering=0, closefd=False) as requests:
        try:
            answer, open_turns = prepare(json.loads(requests.readline()))
            check_no_threads()
            _answer(answer)
            while request := json.loads(requests.readline() or "null"):
                child = os.fork()
                if child == 0:
                    _take_turns(request, open_turns, requests)
                os.waitpid(child, 0)
        except BaseException:
            _answer({"error": traceback.format_exc()})
            raise


def _take_turns(request: Request, open_turns: OpenTurns, requests: Any) -> None:
    """Until the request to end; does not return."""
    try:
        with open_turns(request) as (ready, turn):
            _answer(ready)
            while request := json.loads(requests.readline() or "null"):
                _answer(turn(request))
        _answer({"ended": True})
    except BaseException:  # noqa: BLE001 - reported by the other side
        _answer({"error": traceback.format_exc()})
    os._exit(0)  # nothing of the server's is the child's to clean up


def settle_on(cpus: list[int]) -> None:
    """Run on the first of `cpus`, from which the system may move threads to the others: left alone, it keeps one side
    beside some other busy process for seconds, and not the other side.
    """
    os.sched_setaffinity(0, cpus[:1])
    os.sched_setaffinity(0, cpus)


def _answer(answer: Request) -> None:
    os.write(ANSWERS, json.dumps(answer).encode() + b"\n")
