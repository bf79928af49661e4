"""The server that forks a fresh process for every figure: started by `processes.py`.

Importing torch or numba takes longer than measuring a strategy. So they are imported once, here, where nothing else is
ever done, and each figure is taken in a child forked from that clean state: no batch, thread, model or setting of
another strategy has been in it. Reads a request a line, JSON, of which the first is the `Workload`; answers each with a
line of JSON, the figures or `{"error": ..., "is_input": ...}`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

# What somebody else's input makes loading raise: for these the message says all.
INPUT_ERRORS = (ValueError, OSError, MemoryError, LookupError)


def main() -> None:
    """Answer requests until standard input ends."""
    # Nothing that an import or a model prints may stand between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        from etl.comparison.settings import Settings
        from etl.comparison.workload import Workload

        first = json.loads(sys.stdin.readline())
        workload = Workload(Settings.from_dict(first["settings"]), Path(first["folder"]), first["cpus"])
        _load()
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        answers.write(json.dumps(_error(error)) + "\n")
        return
    can_fork = len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
    answers.write(json.dumps({"can_fork": can_fork}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        workload.select(request["records"])
        workload.plain_compute = request["plain_compute"]
        answers.write(
            json.dumps(_in_child(workload, request, answers) if can_fork else _answer(workload, request)) + "\n"
        )
        if not can_fork:
            return  # the next figure gets a new server


def _load() -> None:
    """Import, before forking, all that measuring needs."""
    # First, because it uses a thread, which the system may show for a moment after it has ended.
    from etl.kernels import load_kernels

    load_kernels()
    import torch._dynamo  # noqa: F401 - torch.optim imports it when the first optimizer is made

    from etl.comparison import measure, profile, writing  # noqa: F401


def tasks() -> Mapping[str, Callable[..., dict[str, Any]]]:
    """What can be asked for, by name: functions of the workload and of JSON values."""
    from etl.comparison.candidate import Candidate
    from etl.comparison.measure import check, load, measure, timeline
    from etl.comparison.profile import profile
    from etl.comparison.writing import write

    return {
        "profile": profile,
        "write": write,
        "check": lambda workload, candidate, **more: check(workload, Candidate(**candidate), **more),
        "measure": lambda workload, candidate, **more: measure(workload, Candidate(**candidate), **more),
        "load": lambda workload, candidate: load(workload, Candidate(**candidate)),
        "timeline": lambda workload, candidate: timeline(workload, Candidate(**candidate)),
    }


def _in_child(workload: Any, request: Mapping[str, Any], answers: TextIO) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answers.close()
        os.close(reader)
        with os.fdopen(writer, "wb") as out:
            out.write(json.dumps(_answer(workload, request)).encode())
        os._exit(0)  # nothing of the server's is the child's to clean up
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123 - a descriptor
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"error": f"killed by signal {os.WTERMSIG(status)}", "is_input": False}
    if not text:
        return {"error": f"ended with exit code {os.WEXITSTATUS(status)}", "is_input": False}
    result: dict[str, Any] = json.loads(text)
    return result


def _answer(workload: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        # Every strategy has the same CPUs, and no more.
        os.sched_setaffinity(0, request["affinity"])
        return {
            **tasks()[request["task"]](workload, **request["arguments"]),
            "affinity": sorted(os.sched_getaffinity(0)),
        }
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        return _error(error)


def _error(error: BaseException) -> dict[str, Any]:
    is_input = isinstance(error, INPUT_ERRORS)
    text = str(error) or type(error).__name__
    return {
        # The message of a key that is missing is the key.
        "error": f"{type(error).__name__}: {text}" if isinstance(error, LookupError) else text,
        "kind": type(error).__name__,
        "is_input": is_input,
        "traceback": "".join(traceback.format_exception(error)),
    }


if __name__ == "__main__":
    main()
