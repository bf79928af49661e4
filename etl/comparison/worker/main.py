"""The measuring server: it imports everything once, then forks a process for each action."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from etl.comparison.request.candidates import Candidate
from etl.comparison.request.settings import Settings
from etl.comparison.run.workload import Workload, WorkloadState
from etl.comparison.worker import user_loader
from etl.comparison.worker.compute import is_on_device, make_compute, modules_of
from etl.functions import find_function, search_folders
from etl.images.settings import take_over
from etl.kernels import load_kernels
from etl.measuring.layout import import_in_drawn_order
from etl.measuring.ranks import Rank
from etl.measuring.sample import Recipe, take_sample
from etl.measuring.server import Answer, OpenSession, Request, one_answer
from etl.measuring.values import JsonValues
from etl.runtime import DeviceMemoryPolicy, GcPolicy, HeapPolicy, Policy, ThreadPolicy
from etl.training.backends import import_torch

# Imported before forking, since imports can take longer than a measurement.
MODULES = ("etl.comparison.worker.builtin", "etl.comparison.worker.profile")


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Make the workload that `Workload.as_dict` described, and import all that measuring needs, in random order."""
    search_folders(request["search"])
    take_over(request["pillow"])
    workload = Workload(Settings.from_dict(request["settings"]), Path(request["folder"]), request["cpus"])
    compute_modules = modules_of(workload.settings)
    if not compute_modules and request["functions"] and importlib.util.find_spec("torch") is not None:
        compute_modules = ("torch",)  # which is seeded for every user loader
    try:
        import_in_drawn_order((*MODULES, *compute_modules))
    except ModuleNotFoundError:
        if compute_modules:
            import_torch()  # if it is missing, this raises an error that says how to install it
        raise
    load_kernels()
    for function in request["functions"]:
        # One that fails here fails again when it is measured, and then it is known which one it was.
        with contextlib.suppress(user_loader.LoaderError), user_loader.loader_errors():
            find_function(function, user_loader.STRATEGIES_OPTION)

    def answer(asked: Request) -> Answer:
        with ExitStack() as in_force:
            return _answer(workload, asked, in_force).to_json()

    return {}, one_answer(answer)


def _answer(workload: Workload, asked: Request, in_force: ExitStack) -> JsonValues:
    """Do what `asked` names, and return the result."""
    from etl.comparison.worker import builtin, profile
    from etl.comparison.worker.untimed import check_epoch, take_loading_sample, take_tuning_sample

    # Every strategy gets the same CPUs.
    os.sched_setaffinity(0, asked["affinity"])
    workload.rank = Rank.from_json(asked["rank"])
    policies = _policies(workload)
    for policy in policies:
        try:
            in_force.enter_context(policy)
        except RuntimeError as error:  # the message names the setting that is unavailable here, and the alternative
            raise ValueError(str(error)) from error
    workload.restore(WorkloadState.from_json(asked["state"]))
    action, arguments = asked["action"], asked["arguments"]
    if asked["candidate"] is None:
        of_all: dict[str, Callable[..., JsonValues]] = {
            "profile": profile.profile_raw_pipeline,
            "write": builtin.write_store,
        }
        return of_all[action](workload, **arguments)
    candidate = Candidate.from_json(asked["candidate"])
    threads = workload.threads(candidate, is_on_device(workload.settings))
    # Floating-point sums depend on the number of threads, so it is the same for all epochs that are checked.
    compute_threads = arguments.pop("compute_threads", threads.compute)
    if candidate.is_foreign:
        policies.append(in_force.enter_context(ThreadPolicy(compute_threads)))
        loader = user_loader.UserLoader.from_json(asked["loader"])
        task = user_loader.task_of(loader, workload.task_source, lambda: workload.pipeline)
        answered = user_loader.answer(loader, task, functools.partial(make_compute, workload), action, arguments)
        return user_loader.audited(answered, policies)
    if action == "timeline":
        return builtin.trace_epoch(workload, candidate)
    policies.append(in_force.enter_context(ThreadPolicy(compute_threads)))
    loading = builtin.loading_of(workload, candidate, threads, meeting=workload.rank.meet())
    if action == "check":
        counts = arguments.pop("counts")
        return check_epoch(loading, None, **arguments, time_threads=functools.partial(builtin.time_threads, counts))
    if action == "load":
        return take_loading_sample(loading)
    recipe = Recipe.from_json(arguments["recipe"])
    if action == "tune":
        return take_tuning_sample(loading, recipe)
    return user_loader.audited(take_sample(loading, recipe), policies)


def _policies(workload: Workload) -> list[Policy]:
    """Return the runtime policies of every strategy, the number of its threads excepted.

    Raises
    ------
    ValueError
        If device memory is to be configured, and compute is not on a CUDA device.
    """
    settings = workload.settings
    policies: list[Policy] = [HeapPolicy(settings.heap), GcPolicy(settings.gc)]
    if settings.device_memory != "default":
        if not is_on_device(settings):
            raise ValueError(f"--device-memory {settings.device_memory}: compute is not on a CUDA device")
        rank = workload.rank
        device = f"cuda:{rank.number}" if rank.world_size > 1 else None
        policies.append(DeviceMemoryPolicy(settings.device_memory, device))
    return policies
