"""`etl doctor [SOURCE]`: find what makes training slow here, and the one change to make first."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, TextColumn

from etl.commands.output import LiveProgress, PlainConsole, deliver, output_path, save_json
from etl.commands.source_arguments import SOURCES, add_source_arguments
from etl.comparison.request.settings import BACKENDS
from etl.measuring.structure import describe
from etl.stages.dtypes import DTYPES
from etl.stages.presets import PRESET_DECODERS
from etl.temporary import temporary_folder
from etl.training.backends import import_torch

# Least severity of the lines that torch's profiler prints to standard error; 6 is above all.
PROFILER_LOG = "KINETO_LOG_LEVEL"

# Training is profiled for at least this long.
PROFILE_SECONDS = 3.0
# So many records are enough to time the stages of loading.
STAGE_RECORDS = 1000
STRATEGIES = ("raw", "async-raw")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help=f"{SOURCES}; without SOURCE, only the machine and the installation are examined",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="mlp, lenet, residual, lstm (default: by the shape of a record), or package.module:function",
    )
    parser.add_argument(
        "--step",
        metavar="FUNCTION",
        help="package.module:function that returns your own training step, step(batch), instead of a model; what only "
        "a model can show is then not looked at",
    )
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default="async-raw", help="how SOURCE is loaded (default: async-raw)"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="records per batch (default: 32)")
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="float32", help="dtype of features and weights (default: float32)"
    )
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="device of compute (default: auto)")
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels (default: 224)")
    parser.add_argument("--decoder", choices=PRESET_DECODERS, default="pillow", help="default: pillow")
    parser.add_argument("--split", choices=("train", "test"), help="which set of MNIST or CIFAR-10 (default: train)")
    parser.add_argument("--batches", type=int, default=20, metavar="N", help="batches to train on (default: 20)")
    parser.add_argument(
        "--try",
        dest="try_remedies",
        action="store_true",
        help="measure each remedy, which takes about five seconds each",
    )
    parser.add_argument(
        "--objects", action="store_true", help="show objects by type and size, and which type grows from epoch to epoch"
    )
    parser.add_argument("--pauses", action="store_true", help="show pauses of the garbage collector, by generation")
    parser.add_argument(
        "--profile",
        type=output_path,
        metavar="FILE",
        help="save a sampled profile of the training, worker processes included: .svg is a flame graph, .json is for "
        "speedscope.app, .txt counts stacks",
    )
    parser.add_argument("--json", type=output_path, metavar="FILE", help="everything, for programs")
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examine the machine or a training run, show the findings, and return 1 if one is serious."""
    os.environ.setdefault(PROFILER_LOG, "6")  # before torch is imported
    import_torch()
    from etl.doctor import examine
    from etl.doctor.profiling import check_profile_path
    from etl.doctor.show import show_examination, show_heap, show_pauses, show_stages

    if arguments.profile is not None:
        check_profile_path(arguments.profile)
    more: dict[str, Any]
    with temporary_folder("doctor") as folder, _progress() as show_progress:
        if arguments.source is None:
            _refuse_without_source(arguments)
            examination, more = examine(progress=show_progress), {}
        else:
            _refuse_beside_step(arguments)
            examination, more = _examine_source(arguments, folder, show_progress)
    shows: dict[str, Any] = {"stages": show_stages, "pauses": show_pauses, "heap": show_heap}

    def show(console: PlainConsole) -> None:
        show_examination(examination, console)
        for name, found in more.items():
            shows[name](found, console)
        if arguments.profile is not None:
            console.print(f"The profile is in {arguments.profile}.")

    content = {**examination.as_dict(), **{name: asdict(found) for name, found in more.items()}}
    deliver(lambda: save_json(arguments.json, content), show=show)
    return int(examination.is_serious)


def _examine_source(arguments: argparse.Namespace, folder: Path, show_progress: Any) -> tuple[Any, dict[str, Any]]:
    """Train on the source, and return the examination and further reports: stages, and on request pauses and heap."""
    from etl.commands.comparison_arguments import settings_of
    from etl.comparison.request.candidates import Candidate
    from etl.comparison.request.model_compute import loss_for, model_for
    from etl.comparison.run.workload import Workload
    from etl.doctor import examine
    from etl.doctor.examination import backend_or_cpu
    from etl.doctor.heap import look_at_heap, watch_pauses
    from etl.doctor.profiling import profiled
    from etl.doctor.setup import Setup, StepSetup, make_setup
    from etl.doctor.stage_times import time_stages
    from etl.doctor.steps import time_steps
    from etl.runtime.resources import available_cpus

    settings = settings_of(arguments, strategies=(arguments.strategy,), sync_every_step=True)
    workload = Workload(settings, folder, available_cpus())
    candidate = Candidate(arguments.strategy)
    backend = backend_or_cpu(arguments.backend) if arguments.step is None else None
    if backend is None:
        step, device = _open_step(workload)
    else:
        device = str(backend.device)
    workload.is_on_device = device != "cpu"
    with workload.iterator(candidate, workload.threads(candidate)) as iterator:
        options = {"batches": arguments.batches, "try_remedies": arguments.try_remedies, "progress": show_progress}
        setup: Setup
        if backend is None:
            examination = examine(iterator=iterator, step=step, **options)
            setup = StepSetup(iterator, step)
        else:
            state = iterator.state_dict()
            batch = next(iter(iterator))
            model, loss = model_for(workload, batch), loss_for(workload, batch)
            iterator.load_state_dict(state)
            examination = examine(model, iterator, loss=loss, backend=backend, **options)
            setup = make_setup(model, iterator, backend, loss)
        more: dict[str, Any] = {}
        if arguments.profile is not None:
            show_progress("a profile", 0, 1)
            typical = examination.seconds_per_batch or PROFILE_SECONDS
            with profiled(arguments.profile):
                time_steps(setup, max(arguments.batches, math.ceil(PROFILE_SECONDS / typical)))
        if arguments.pauses:
            show_progress("the garbage collector", 0, 1)
            more["pauses"] = watch_pauses(setup, arguments.batches)
        if arguments.objects:
            show_progress("the heap", 0, 1)
            more["heap"] = look_at_heap(lambda: time_steps(setup, arguments.batches))
    show_progress("the stages", 0, 1)
    workload.select(min(STAGE_RECORDS, len(workload.source)))  # all of their files are read, more than once
    return examination, {"stages": time_stages(workload, backend), **more}


def _open_step(workload: Any) -> tuple[Callable[[Any], None], str]:
    """Return the user's training step, as a function of a batch of this package, and the device that it computes on.

    Raises `ValueError` if there is no such function. If it or its step raises an error, the message quotes that.
    """
    from etl.functions import find_function
    from etl.training.compute import UserStep

    name = f"--step {workload.settings.step}"
    try:
        make_step = find_function(workload.settings.step, "--step")
        compute = UserStep(make_step, workload.task(), workload.settings.waits_for_steps, workload.rank)
    except ValueError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error

    def step(batch: Any) -> None:
        collated = workload.collate(batch)
        try:
            compute.step(collated)
        except Exception as error:
            raise ValueError(f"{name}: {type(error).__name__}: {error}; its batch is {describe(collated)}") from error

    return step, compute.device


def _refuse_beside_step(arguments: argparse.Namespace) -> None:
    for option, given in {"--model": arguments.model is not None, "--backend": arguments.backend != "auto"}.items():
        if arguments.step is not None and given:
            raise ValueError(f"--step has a model and a device of its own, so {option} has no effect with it")


def _refuse_without_source(arguments: argparse.Namespace) -> None:
    needing = {
        "--model": arguments.model is not None,
        "--step": arguments.step is not None,
        "--pipeline": arguments.pipeline is not None,
        "--try": arguments.try_remedies,
        "--objects": arguments.objects,
        "--pauses": arguments.pauses,
        "--profile": arguments.profile is not None,
    }
    for option, given in needing.items():
        if given:
            raise ValueError(f"{option} needs a SOURCE to train from")


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function that shows progress; see `examine`."""
    with LiveProgress(BarColumn(), TextColumn("{task.description}", markup=False)) as bar:
        task = bar.add_task("starting", total=1)
        yield lambda activity, done, total: bar.update(task, description=activity, completed=done, total=total)
