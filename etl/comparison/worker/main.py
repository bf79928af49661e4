"""The measuring server: it imports everything once, then forks a process for each request."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from contextlib import ExitStack
from pathlib import Path

from etl.comparison.request.answers import TuningSample, audited
from etl.comparison.request.loader_request import task_of
from etl.comparison.request.measuring_request import MeasuringRequest
from etl.comparison.request.settings import Settings
from etl.comparison.request.work import Work
from etl.comparison.worker import user_loader
from etl.comparison.worker.make_compute import is_on_device, make_compute, modules_of
from etl.comparison.worker.untimed import check_epoch, take_loading_sample
from etl.functions import find_function, search_folders
from etl.images.settings import take_over
from etl.kernels import load_kernels
from etl.measuring.layout import import_in_drawn_order
from etl.measuring.processes import ONE_THREAD
from etl.measuring.sample import take_sample
from etl.measuring.server import Answer, OpenSession, Request, every_answer
from etl.measuring.values import JsonValues
from etl.runtime import DeviceMemoryPolicy, GcPolicy, HeapPolicy, Policy, ThreadPolicy
from etl.training.backends import import_torch

# Imported before forking, since imports can take longer than a measurement.
MODULES = ("etl.comparison.worker.builtin", "etl.comparison.worker.profile")


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Open the work that is described, and import all that measuring needs, in random order."""
    search_folders(request["settings"]["search"])  # settings may name strategies that only these folders have
    settings: Settings = Settings.from_json(request["settings"])
    take_over(request["pillow"])
    work = Work(settings, Path(request["folder"]), request["cpus"])
    compute_modules = modules_of(settings)
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
            return _answer(work, MeasuringRequest.from_json(asked), in_force).to_json()

    return {}, every_answer(answer)


def _answer(work: Work, asked: MeasuringRequest, in_force: ExitStack) -> JsonValues:
    """Do what is asked, and return the result."""
    from etl.comparison.worker import builtin, profile  # which `prepare` has imported in a drawn order

    # Every strategy gets the same CPUs.
    os.sched_setaffinity(0, asked.affinity)
    work.rank = asked.rank
    work.select(asked.records)
    policies = _policies(work)
    for policy in policies:
        try:
            in_force.enter_context(policy)
        except RuntimeError as error:  # the message names the setting that is unavailable here, and the alternative
            raise ValueError(str(error)) from error
    if asked.action == "profile":
        return profile.profile_raw_pipeline(work, asked.splits, asked.counts)
    if asked.store is not None:
        return builtin.write_store(work, asked.store, jobs=len(asked.affinity))
    if asked.candidate is None or asked.threads is None:
        raise ValueError(f"{asked.action} needs a candidate")
    compute_threads = asked.compute_threads or asked.threads.compute
    # The server has one thread. Libraries that a step, a stage or a data set imports now have as many as compute. A
    # user's loader and its processes may use all its CPUs.
    late_threads = compute_threads if asked.loader is None else asked.loader.cpus
    os.environ.update(dict.fromkeys(ONE_THREAD, str(late_threads)))
    if asked.loader is not None:
        policies.append(in_force.enter_context(ThreadPolicy(compute_threads)))
        task = task_of(asked.loader, work.task_source, lambda: work.pipeline)
        answered = user_loader.answer(asked, asked.loader, task, functools.partial(make_compute, work))
        return audited(answered, policies)
    if asked.action == "timeline":
        return builtin.trace_epoch(work, asked.candidate, asked.threads)
    policies.append(in_force.enter_context(ThreadPolicy(compute_threads)))
    loading = builtin.loading_of(work, asked.candidate, asked.threads)
    if asked.action == "check":
        time_threads = functools.partial(builtin.time_threads, asked.counts)
        return check_epoch(loading, None, asked.trains, asked.arrays_file, time_threads=time_threads)
    if asked.action == "load":
        return take_loading_sample(loading)
    sample = take_sample(loading, asked.recipe)
    return TuningSample.of(sample) if asked.action == "tune" else audited(sample, policies)


def _policies(work: Work) -> list[Policy]:
    """Return the runtime policies of every strategy, the number of its threads excepted.

    Raise `ValueError` if device memory is to be configured, and compute is not on a CUDA device.
    """
    settings = work.settings
    policies: list[Policy] = [HeapPolicy(settings.heap), GcPolicy(settings.gc)]
    if settings.device_memory != "default":
        if not is_on_device(settings):
            raise ValueError(f"--device-memory {settings.device_memory}: compute is not on a CUDA device")
        device = f"cuda:{work.rank.number}" if work.rank.world_size > 1 else None
        policies.append(DeviceMemoryPolicy(settings.device_memory, device))
    return policies
