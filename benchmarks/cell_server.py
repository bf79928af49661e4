"""The server that forks a fresh process for every measurement: started by rounds.py, through alone.py.

Importing torch or numba takes longer than measuring a cell. So they are imported once, here, where nothing else is
ever done, and each measurement runs in a child forked from that clean state: no batch, thread, model or setting of
another cell has been in it. Reads a request a line, a JSON object of `cell`, `data` and `seconds_per_figure`; answers
with a line of JSON, the figures or `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from benchmarks.fork_ready import make_fork_ready


def main() -> None:
    """Answer requests until standard input ends."""
    make_fork_ready()
    for line in sys.stdin:
        print(json.dumps(_in_child(json.loads(line))), flush=True)


def _in_child(request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(request, writer)
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123 - a descriptor
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"error": f"killed by signal {os.WTERMSIG(status)}"}
    result: dict[str, Any] = json.loads(text)
    return result


def _answer(request: dict[str, Any], writer: int) -> None:
    from benchmarks.cell import Cell
    from benchmarks.measure import measure
    from benchmarks.workload import Data

    try:
        result = measure(Cell(**request["cell"]), Data(**request["data"]), request["seconds_per_figure"])
    except BaseException:  # noqa: BLE001 - reported by the parent
        result = {"error": traceback.format_exc()}
    os.write(writer, json.dumps(result).encode())
    os._exit(0)  # nothing of the server's is the child's to clean up
