"""The measuring server: it imports everything once, then forks a process for each task."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from etl.comparison.settings import Candidate, Settings
from etl.comparison.workload import Workload, WorkloadState
from etl.kernels import load_kernels
from etl.measuring.layout import import_in_drawn_order
from etl.measuring.server import Answer, OpenSession, Request, one_answer
from etl.measuring.values import JsonValues
from etl.runtime import GcPolicy, HeapPolicy
from etl.training.backends import import_torch

# Imported before forking, since imports can take longer than a measurement. torch._dynamo is listed because torch.optim
# would import it when the first optimizer is made.
MODULES = ("torch", "torch._dynamo", "etl.comparison.measure", "etl.comparison.profile")


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Make the workload that `Workload.as_dict` described, and import all that measuring needs, in random order."""
    workload = Workload(Settings.from_dict(request["settings"]), Path(request["folder"]), request["cpus"])
    try:
        import_in_drawn_order(MODULES)
    except ModuleNotFoundError:
        import_torch()  # if torch is missing, this raises an error that says how to install it
        raise
    load_kernels()

    def answer(asked: Request) -> Answer:
        with ExitStack() as in_force:
            return _answer(workload, asked, in_force).to_json()

    return {}, one_answer(answer)


def _answer(workload: Workload, asked: Request, in_force: ExitStack) -> JsonValues:
    """Run the task that `asked` names, and return its result."""
    from etl.comparison import measure, profile

    # Every strategy gets the same CPUs.
    os.sched_setaffinity(0, asked["affinity"])
    policies = (HeapPolicy(workload.settings.heap), GcPolicy(workload.settings.gc))
    for policy in policies:
        try:
            in_force.enter_context(policy)
        except RuntimeError as error:  # the message names the setting that is unavailable here, and the alternative
            raise ValueError(str(error)) from error
    workload.restore(WorkloadState.from_json(asked["state"]))
    arguments = asked["arguments"]
    if asked["candidate"] is None:
        tasks: dict[str, Callable[..., JsonValues]] = {
            "profile": profile.profile_raw_pipeline,
            "write": measure.write_store,
        }
        return tasks[asked["task"]](workload, **arguments)
    candidate = Candidate.from_json(asked["candidate"])
    if asked["task"] == "measure":
        return measure.take_sample(workload, candidate, policies, **arguments)
    of_candidates: dict[str, Callable[..., JsonValues]] = {
        "check": measure.check_epoch,
        "try_splits": measure.try_splits,
        "load": measure.take_loading_sample,
        "timeline": measure.trace_epoch,
    }
    return of_candidates[asked["task"]](workload, candidate, **arguments)
