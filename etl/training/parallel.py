"""`fit_parallel`: starts the ranks of a training on this machine."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.arguments import describe, whole_number
from etl.functions import name_of_function
from etl.images.settings import pillow_settings
from etl.iterators import BatchIterator
from etl.measuring.processes import SIGNALS
from etl.temporary import temporary_folder
from etl.training.backends import choose_device, import_torch
from etl.training.fit import FitResult
from etl.training.progress import RankProgress, make_progress
from etl.training.ranks import WAITED, RankError
from presave.carrying import dumps

if TYPE_CHECKING:
    import torch

JOB, RESULT, PROGRESS = "job.pickle", "result.pickle", "progress"
# In errors of gloo and of the store at which ranks meet.
TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """The work of the ranks: arguments of `fit_parallel`, and `options` of `fit`."""

    make_model: Callable[[], torch.nn.Module]
    make_iterator: Callable[[], BatchIterator | Iterable[Any]]
    prefetch_size: int
    timeout: float
    seed: int
    options: dict[str, Any]


def fit_parallel(
    make_model: Callable[[], torch.nn.Module],
    make_iterator: Callable[[], BatchIterator | Iterable[Any]],
    workers: int = 2,
    averaging_frequency: int = 1,
    prefetch_size: int = 2,
    report_score_after_averaging: bool = True,
    backend: str = "auto",
    *,
    timeout: float = 600.0,
    restarts: int = 0,
    seed: int = 0,
    **options: Any,
) -> FitResult:
    """Train a model on several ranks, which are started here, and return when they are done.

    Parameters
    ----------
    make_model : callable
        Returns the model, in each rank. It must not be sharded.
    make_iterator : callable
        Returns the batches of all ranks, in each rank, which takes its part as in `fit`.
    workers : int
        Number of ranks.
    averaging_frequency, report_score_after_averaging
        See `fit`.
    prefetch_size : int
        Batches that each rank loads ahead, by an `AsyncIterator` around an iterator of etl unless it is asynchronous
        already. 0 for none.
    backend : str
        "auto", "cpu" or "cuda". Each rank has a CUDA device of its own.
    timeout : float
        Seconds that a rank may take for a batch. It is ended then; with `prefetch_size`, with the name of the record
        that hangs. One that another rank waits for in vain is ended after twice that time.
    restarts : int
        How often all ranks are started anew after a failure. With a `Checkpoint` among the listeners, they go on from
        there.
    seed : int
        Seeds the global random generators of Python, numpy and torch before `make_model` and `make_iterator` are
        called, equally on all ranks; then, with the rank, those of the training, so that each rank draws its own
        dropout masks and augmentations.
    **options
        Further arguments of `fit`, such as `epochs`, `optimizer`, `learning_rate`, `loss` and `listeners`. Each rank
        has copies of them.

    Returns
    -------
    FitResult
        That of rank 0, with the state of the trained model: `model.load_state_dict(result.state)`.

    Raises
    ------
    RankError
        If a rank has raised, was killed or hung. All others have ended by then.
    ValueError
        If an argument is invalid, or cannot be carried to another process.
    RuntimeError
        If the backend is not available, or has fewer devices than `workers`.

    Notes
    -----
    The CPUs of this process are divided among the ranks: each runs, with its threads and processes, on its own part of
    them. If there are more ranks than CPUs, several share one. A store is in memory once, however many ranks map it.

    Functions may be defined in a script or a notebook; no main guard is needed. The ranks run under torch's elastic
    agent, as with torchrun. They end if this process does.

    Source: ParallelWrapper in "Deeplearning4j With GPUs".

    Examples
    --------
        result = etl.training.fit_parallel(make_model, make_iterator, workers=2, epochs=3)
        model.load_state_dict(result.state)
    """
    _check_functions(make_model, make_iterator)
    workers = whole_number("workers", workers, least=1)
    restarts = whole_number("restarts", restarts, least=0)
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    _check_devices(backend, workers)
    options |= {
        "backend": backend,
        "averaging_frequency": whole_number("averaging_frequency", averaging_frequency, least=1),
        "report_score_after_averaging": report_score_after_averaging,
    }
    prefetch_size = whole_number("prefetch_size", prefetch_size, least=0)
    job = Job(make_model, make_iterator, prefetch_size, timeout, seed, options)
    with _temporary_folder() as folder:
        (folder / JOB).write_bytes(_carried(job))
        progress = make_progress(folder / PROGRESS, workers)
        _launch(folder, workers, restarts, timeout, progress)
        result: FitResult = pickle.loads((folder / RESULT).read_bytes())  # noqa: S301 - written by rank 0
    return result


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed at the end; if there is a shell, even if this process is killed."""
    quiet = subprocess.DEVNULL
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("ranks"))
        command = ["sh", "-c", 'read -r line || rm -rf -- "$0"', str(folder)]
        with contextlib.suppress(OSError):
            remover = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
            )
            # Not by closing the pipe alone: a process that another thread has forked may hold it, too.
            stack.callback(remover.communicate, b"\n")
        yield folder


def _check_functions(make_model: Any, make_iterator: Any) -> None:
    torch = import_torch()
    for name, given, returned in (("make_model", make_model, "the model"), ("make_iterator", make_iterator, "batches")):
        if not callable(given) or isinstance(given, torch.nn.Module):
            raise ValueError(
                f"{name} must be a function that returns {returned}, which each rank calls, not {describe(given)}"
            )


def _check_devices(backend: str, workers: int) -> None:
    kind, index, _ = choose_device(backend)
    if kind != "cuda":
        return
    devices = import_torch().cuda.device_count()
    if index is not None and workers > 1:
        raise ValueError(f"{workers} ranks cannot share the device of backend={backend!r}: use backend='cuda'")
    if workers > devices:
        raise RuntimeError(
            f"{workers} ranks need as many CUDA devices, but there are {devices}: ask for fewer workers, or use "
            "backend='cpu'"
        )


def _carried(job: Job) -> bytes:
    try:
        # The folders of modules come first: unpickling the job imports from them.
        return pickle.dumps((list(sys.path), pillow_settings(), dumps(job)))
    except Exception as error:  # pickling runs the user's code
        names = f"{name_of_function(job.make_model)}, {name_of_function(job.make_iterator)} or an option"
        raise ValueError(f"{names} cannot be carried to another process: {type(error).__name__}: {error}") from error


def _launch(folder: Path, workers: int, restarts: int, timeout: float, progress: list[RankProgress]) -> None:
    """Run the ranks to their end, or raise `RankError`."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=restarts,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),  # by default, in a folder that stays
    )
    failures: dict[int, Any] = {}
    received: int | None = None
    try:
        with _quiet(), _own_signal_handlers():
            elastic_launch(config, sys.executable)("-m", "etl.training.rank_process", folder, os.getpid())
    except ChildFailedError as error:
        failures = error.failures
    except SignalException as error:  # the agent has ended the ranks
        received = error.sigval
    if received is not None:
        signal.raise_signal(received)  # for Ctrl-C, raises KeyboardInterrupt
        raise RankError(f"the ranks were ended because of {signal.Signals(received).name}", 0)
    if failures:
        found = _explain(failures, progress, timeout)
        text = _told(failures[found.rank])[1] if found.rank in failures else ""
        raise found from (_RankTraceback(text) if text else None)


class _RankTraceback(Exception):  # noqa: N818 - shown as the cause of an error
    """The traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Restore this process's handlers of signals, which torch's agent replaces and leaves so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # of a library in C
                signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging the errors that are raised here."""
    logger = logging.getLogger("torch.distributed.elastic")
    names = list(logging.root.manager.loggerDict)  # other threads may add some
    loggers = [logging.getLogger(name) for name in names if name.startswith(logger.name)]
    levels = [(each, each.level) for each in (logger, *loggers)]
    for each, _ in levels:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in levels:
            each.setLevel(level)


def _told(failure: Any) -> tuple[str, str]:
    """Return the message and the traceback that a rank has written, or what the agent says of it."""
    if isinstance(failure.message, str):
        return failure.message, ""
    return failure.message["message"], failure.message["extraInfo"]["py_callstack"]


def _without_class(message: str) -> str:
    return message.partition(": ")[2]


def _explain(failures: dict[int, Any], progress: list[RankProgress], timeout: float) -> RankError:
    """Return one error, for the rank at which the failure began."""
    world_size = len(progress)
    raised: list[int] = []
    waited: list[int] = []
    ended: list[int] = []
    killed: list[int] = []
    stopped: list[int] = []
    for rank, each in failures.items():
        if each.exitcode == -signal.SIGTERM:  # as the agent ends the others
            stopped.append(rank)
        elif each.exitcode < 0:
            killed.append(rank)
        elif isinstance(each.message, str):
            ended.append(rank)
        else:
            (waited if _told(each)[0].startswith(WAITED) else raised).append(rank)
    if raised:
        rank = min(raised, key=lambda rank: failures[rank].timestamp)
        return RankError(_without_class(_told(failures[rank])[0]), rank)
    others = [rank for rank in range(world_size) if rank not in waited]
    has_timed_out = any(TIMED_OUT.search(_told(failures[rank])[0]) for rank in waited)
    if ended:
        rank = ended[0]
        end = f"ended with code {failures[rank].exitcode}"
    elif has_timed_out and others:  # the agent has ended them, by SIGKILL if SIGTERM did not
        rank = min(others, key=lambda rank: progress[rank].doing.since)
        doing = progress[rank].doing
        hangs = f"hangs for {doing.seconds:.0f} s" if doing.since else "has not begun"
        end = f"{hangs}, and others have waited for {2 * timeout:g} s"
    elif killed or stopped:
        rank = (killed or stopped)[0]
        number = signal.Signals(-failures[rank].exitcode)
        end = f"was killed by {number.name}{SIGNALS.get(number, '')}"
    elif others:
        rank, end = others[0], "ended with code 0 before the others"
    else:
        return RankError(_without_class(_told(failures[waited[0]])[0]), waited[0])
    return RankError(f"rank {rank} of {world_size} {end}, while {progress[rank].doing}", rank)
