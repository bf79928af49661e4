"""What a measuring process is asked for: the server that imports everything, and the tasks of its forked processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from etl.comparison.candidate import Candidate
from etl.comparison.settings import Settings
from etl.comparison.workload import State, Workload
from etl.kernels import load_kernels
from etl.measuring.layout import import_in_drawn_order
from etl.measuring.server import Answer, OpenSession, Request, one_answer
from etl.measuring.values import JsonValues
from etl.runtime import GcPolicy, HeapPolicy
from etl.training.backends.selection import import_torch

# Imported before forking, since it takes longer than measuring a strategy. torch.optim imports the second when the
# first optimizer is made.
MODULES = ("torch", "torch._dynamo", "etl.comparison.measure", "etl.comparison.profile", "etl.comparison.writing")


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Make the workload of `Workload.as_dict`, and import all that measuring needs, in any order."""
    workload = Workload(Settings.from_dict(request["settings"]), Path(request["folder"]), request["cpus"])
    try:
        import_in_drawn_order(MODULES)
    except ModuleNotFoundError:
        import_torch()  # if it is torch that is missing, its error says how to install it
        raise
    load_kernels()

    def answer(asked: Request) -> Answer:
        with ExitStack() as in_force:
            return _answer(workload, asked, in_force).to_json()

    return {}, one_answer(answer)


def _answer(workload: Workload, asked: Request, in_force: ExitStack) -> JsonValues:
    """Return the figures that `asked` is for."""
    from etl.comparison import measure, profile, writing

    # Every strategy has the same CPUs, and no more.
    os.sched_setaffinity(0, asked["affinity"])
    policies = (HeapPolicy(workload.settings.heap), GcPolicy(workload.settings.gc))
    for policy in policies:
        try:
            in_force.enter_context(policy)
        except RuntimeError as error:  # it says which setting cannot be had here, and what to set instead
            raise ValueError(str(error)) from error
    workload.restore(State.from_json(asked["state"]))
    arguments = asked["arguments"]
    if asked["candidate"] is None:
        tasks: dict[str, Callable[..., JsonValues]] = {"profile": profile.profile, "write": writing.write}
        return tasks[asked["task"]](workload, **arguments)
    candidate = Candidate.from_json(asked["candidate"])
    if asked["task"] == "measure":
        return measure.measure(workload, candidate, policies, **arguments)
    of_candidates: dict[str, Callable[..., JsonValues]] = {
        "check": measure.check,
        "try_splits": measure.try_splits,
        "load": measure.load,
        "timeline": measure.timeline,
    }
    return of_candidates[asked["task"]](workload, candidate, **arguments)
