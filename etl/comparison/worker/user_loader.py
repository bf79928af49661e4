"""User loaders in the process that measures them, in the environment of the comparison or in another one.

Besides what the loader itself imports, numpy, psutil and xxhash are enough.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from etl.comparison.request.answers import FirstTry, TriedLoader, TuningSample, WrittenStore, audited
from etl.comparison.request.loader_request import UserLoader, files_below, task_of
from etl.comparison.request.measuring_request import MeasuringRequest
from etl.comparison.worker.make_compute import make_plain_compute
from etl.comparison.worker.untimed import check_epoch, prepare_files, try_loader
from etl.functions import find_function, search_folders
from etl.images.settings import take_over
from etl.measuring.epochs import Compute, MeasuredLoader
from etl.measuring.places import describe_error
from etl.measuring.process_tree import command_of, started_processes
from etl.measuring.sample import take_sample
from etl.measuring.server import Answer, OpenSession, Request, every_answer
from etl.measuring.values import JsonValues
from etl.runtime.gc_policy import GcPolicy
from etl.runtime.heap_policy import HeapPolicy
from etl.strategies.open_loader import find_prepare, open_loader
from etl.strategies.settings import declared_settings, present_settings
from etl.strategies.task import Task
from etl.strategies.torch_loader import kept_sharing_strategy
from etl.training.compute import seed_everything

if TYPE_CHECKING:
    from typing import Self

# Time that the processes of a loader have to end after the loader was closed.
ENDING_SECONDS = 3.0
STRATEGIES_OPTION = "--strategies"
# Characters of a printed line that the report quotes.
MAX_PRINTED = 80


class LoaderError(ValueError):
    """A user's loader raised an exception. The message is a line that names it, and its place."""


class PrintedLines:
    """A context manager that counts the lines that this process and its children print to standard output.

    At the end, `count` is the number of those that are not empty, and `first` the first of them, shortened.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __enter__(self) -> Self:
        self._file = tempfile.TemporaryFile()
        sys.stdout.flush()
        self._usual = os.dup(1)
        os.dup2(self._file.fileno(), 1)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        os.dup2(self._usual, 1)
        os.close(self._usual)
        with self._file:
            self._file.seek(0)
            for line in filter(bytes.strip, self._file):
                self.count += 1
                self.first = self.first or line.decode(errors="replace").strip()[:MAX_PRINTED]


@contextmanager
def loader_errors() -> Iterator[None]:
    """Turn whatever a user's loader raises into a `LoaderError`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise LoaderError(describe_error(error)) from error


@loader_errors()
def answer(
    asked: MeasuringRequest, loader: UserLoader, task: Task, make_compute: Callable[[Any], Compute] | None
) -> JsonValues:
    """Do what is asked with `loader`, in this process.

    The compute of the comparison itself comes from `make_compute`, which is None if it cannot run in this Python.
    """
    function = find_function(loader.function, STRATEGIES_OPTION)
    declared_settings(function)  # an error says what is wrong with them
    requested: set[str] = set()
    noted = replace(  # for the loader alone: a training step may ask for records that the loader does not read
        task,
        open_path=functools.partial(_note, requested, "path", task),
        open_source=functools.partial(_note, requested, "source", task),
    )
    seed_everything(loader.conditions.seed)
    prepare = find_prepare(function)
    if asked.action == "first_try" and prepare is not None:
        try:
            # Settings vary how files are read, not what they hold: they are prepared once for all.
            prepared = _run(prepare, loader, replace(noted, settings={}))
            return FirstTry(replace(prepared, requested=sorted(requested)), None)
        finally:
            end_processes()
    if loader.rank.cpus:
        os.sched_setaffinity(0, loader.rank.cpus)  # files are prepared on the CPUs of all ranks
    loading = MeasuredLoader(
        make=functools.partial(open_loader, function, noted),
        make_compute=functools.partial(_make_compute, loader, task, make_compute),
        files=[*map(Path, loader.files), *files_below(Path(loader.folder))],
        is_cold=loader.conditions.cache == "cold",
        records=None if loader.batches is not None else loader.records,
        is_ahead=True,
        meeting=loader.rank.meet(),
    )
    try:
        if asked.action in ("first_try", "try"):
            step_records = loader.conditions.batch_size * loader.rank.world_size
            tried = try_loader(loading, loader.batches, step_records, asked.seconds)
            tried = with_declared(replace(tried, requested=sorted(requested)), function, task)
            return tried if asked.action == "try" else FirstTry(None, tried)
        if asked.action == "check":
            with PrintedLines() as printed:
                checked = check_epoch(loading, loader.batches, asked.trains, asked.arrays_file, asked.again)
                left = end_processes()
            return replace(checked, left_behind=left, printed_lines=printed.count, first_printed=printed.first)
        with kept_sharing_strategy():
            sample = take_sample(loading, asked.recipe)
        return TuningSample.of(sample) if asked.action == "tune" else sample
    finally:
        end_processes()


def with_declared(tried: TriedLoader, function: Callable[..., Any], task: Task) -> TriedLoader:
    """Return `tried` with the settings that `function` declares beside those of its DataLoader, which they replace.

    A function that declares "workers" passes them on, so `num_workers` of its DataLoader is not varied as well.
    """
    declared = declared_settings(function)
    replaced = {*declared, "num_workers"} if "workers" in declared else {*declared}
    settings = {name: list(values) for name, values in declared.items()}
    settings.update((name, values) for name, values in tried.settings.items() if name not in replaced)
    given = {**tried.given, **present_settings(function, task)}
    return replace(tried, settings=settings, given={name: given[name] for name in settings if name in given})


def _note(asked: set[str], name: str, task: Task) -> Any:
    """Note that a loader asks for an attribute of `task`, and return it."""
    asked.add(name)
    return getattr(task, name)


def _run(prepare: Callable[[Task], Any], loader: UserLoader, task: Task) -> WrittenStore:
    """Run the loader's `prepare`, and return its cost."""
    prepare_files([Path(each) for each in loader.files], loader.conditions.cache)
    started = time.perf_counter()
    prepare(task)
    seconds = time.perf_counter() - started
    nbytes = sum(each.stat().st_size for each in files_below(Path(loader.folder)))
    return WrittenStore(seconds, nbytes, task.records)


def _make_compute(loader: UserLoader, task: Task, make_compute: Callable[[Any], Compute] | None, batch: Any) -> Compute:
    compute = make_plain_compute(loader.conditions, loader.rank, lambda: task)
    if compute is not None:
        return compute
    if make_compute is None:
        raise ValueError(
            "another Python cannot run the comparison's own model; give --step module:function, which runs there, or "
            "--compute simulated:20ms"
        )
    return make_compute(batch)


def end_processes() -> list[str]:
    """End the processes that this process has started, after a moment to end themselves; return their command lines.

    The helpers of `multiprocessing` are left out: they end with this process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for a worker that is killed
    _, left = psutil.wait_procs(started_processes(), timeout=ENDING_SECONDS)
    names = [command_of(each) for each in left]
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(left, timeout=ENDING_SECONDS)
    return names


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Prepare to measure a loader in the environment of another library: import its module.

    No process is forked for a measurement. It would lack the threads that libraries start when they are imported, and
    skip exit handlers, in which some libraries remove their shared memory.
    """
    search_folders(request["search"])
    take_over(request["pillow"])
    # Before the import, since some libraries then start as many threads as they may use CPUs.
    os.sched_setaffinity(0, request["affinity"])
    with loader_errors():
        find_function(request["function"], STRATEGIES_OPTION)

    def respond(message: Request) -> Answer:
        asked = MeasuringRequest.from_json(message)
        os.sched_setaffinity(0, asked.affinity)
        loader = asked.loader
        if loader is None:
            raise ValueError(f"{asked.action} needs a user's loader")
        compute_threads = asked.compute_threads or (None if asked.threads is None else asked.threads.compute)
        conditions = loader.conditions
        with ExitStack() as in_force:
            if compute_threads is not None and importlib.util.find_spec("torch") is not None:
                torch = importlib.import_module("torch")  # now, or what imports it later would have all CPUs
                in_force.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(compute_threads)
            policies = [in_force.enter_context(each) for each in (HeapPolicy(conditions.heap), GcPolicy(conditions.gc))]
            return audited(answer(asked, loader, task_of(loader), None), policies).to_json()

    return {}, every_answer(respond)
