"""The server that forks a process for every strategy and task: started by `processes.py`.

Importing torch or numba takes longer than measuring a strategy. So they are imported once, here, where nothing else is
ever done, and figures are taken in children forked from that clean state: no batch, thread, model or setting of
another strategy has been in them. Reads a request a line, JSON, of which the first is the `Workload`; answers each with
a line of JSON, the figures or `{"error": ..., "is_input": ...}`. A child that a request wants to `keep` stays, and the
next request of that name is for it, unless `end_kept` has ended all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from etl.measuring.server import Failure


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
    kept: dict[str, _Child] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if not can_fork:
            _serve(workload, [line], answers)
            return  # the next figure gets a new server
        if request["end_kept"]:
            for each in kept.values():
                each.end()
            kept.clear()
        name = request["keep"]
        child = kept.pop(name) if name in kept else _Child(workload, answers, kept.values())
        answer = child.ask(line)
        if name is not None and child.is_alive:
            kept[name] = child
        else:
            child.end()  # before the answer, so that it does not end beside the next one's work
        answers.write(answer)


def _load() -> None:
    """Import, before forking, all that measuring needs."""
    # First, because it uses a thread, which the system may show for a moment after it has ended.
    from etl.backends.choose import import_torch
    from etl.kernels import load_kernels

    load_kernels()
    import_torch()
    import torch._dynamo  # noqa: F401 - torch.optim imports it when the first optimizer is made

    from etl.comparison import tasks  # noqa: F401


class _Child:
    """A process forked from this one, which answers requests as long as it is asked."""

    is_alive: bool
    _ask: TextIO
    _answer: TextIO

    def __init__(self, workload: Any, not_its_own: TextIO, siblings: Iterable[_Child]) -> None:
        requests, ask = os.pipe()
        answer, answers = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            not_its_own.close()
            for each in siblings:  # which would not see the end of their requests while this one can write to them
                each._ask.close()
                each._answer.close()
            os.close(ask)
            os.close(answer)
            with os.fdopen(requests) as lines, os.fdopen(answers, "w", buffering=1) as out:
                _serve(workload, lines, out)
            os._exit(0)  # nothing of the server's is the child's to clean up
        os.close(requests)
        os.close(answers)
        self._ask = os.fdopen(ask, "w", buffering=1)
        self._answer = os.fdopen(answer)
        self.is_alive = True

    def ask(self, request: str) -> str:
        """The answer to `request`, a line; an error where it ended instead."""
        with contextlib.suppress(BrokenPipeError):
            self._ask.write(request)
        answer = self._answer.readline()
        return answer if answer.endswith("\n") else json.dumps(self._reap()) + "\n"

    def end(self) -> None:
        """Let it go."""
        if self.is_alive:
            self._reap()

    def _reap(self) -> dict[str, Any]:
        self.is_alive = False
        with contextlib.suppress(BrokenPipeError):
            self._ask.close()
        self._answer.close()
        _, status = os.waitpid(self._process, 0)
        ended = f"ended with exit code {os.waitstatus_to_exitcode(status)}"
        if os.WIFSIGNALED(status):
            ended = f"killed by signal {os.WTERMSIG(status)}"
        return {"error": ended, "is_input": False}


def _serve(workload: Any, requests: Iterable[str], answers: TextIO) -> None:
    """Answer `requests` until they end."""
    from etl.comparison.tasks import Tasks
    from etl.runtime import GcPolicy, HeapPolicy

    policies = (HeapPolicy(workload.settings.heap), GcPolicy(workload.settings.gc))
    tasks = Tasks(workload, policies)
    refused: dict[str, Any] | None = None
    with contextlib.ExitStack() as in_force:
        try:
            for policy in policies:
                in_force.enter_context(policy)
        except (RuntimeError, MemoryError) as error:
            refused = {**_error(error), "is_input": True}
        in_force.enter_context(contextlib.closing(tasks))
        for line in requests:
            try:
                answer = refused or tasks.answer(json.loads(line))
            except BaseException as error:  # noqa: BLE001 - reported to the parent
                answer = _error(error)
            answers.write(json.dumps(answer) + "\n")


def _error(error: BaseException) -> dict[str, Any]:
    failure = asdict(Failure.of(error))
    return {"error": failure.pop("message"), **failure}


if __name__ == "__main__":
    main()
