"""`etl compare SOURCE`: compare ways of loading SOURCE: which one to use, what it gains, and how sure that is."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import presave
from etl import strategies
from etl.arguments import parse_nbytes, parse_seconds
from etl.commands.config_argument import add_config_argument, fill, fill_from, read_configuration
from etl.commands.output import PlainConsole, check_file_path, output_console, save_json, save_text, show_error
from etl.commands.source_arguments import add_source_arguments, source_options
from etl.comparison.page import render_page
from etl.comparison.phases import run_comparison
from etl.comparison.progress import ComparisonProgress
from etl.comparison.publishing import ContradictionError
from etl.comparison.rules import RULES
from etl.comparison.settings import BACKENDS, CACHES, Settings
from etl.comparison.table import show_report
from etl.comparison.trace import trace_events
from etl.configuration import PREFETCH_SIZE, SIZE, Configuration
from etl.measuring.processes import MeasurementError
from etl.runtime.gc_policy import KINDS as COLLECTORS
from etl.runtime.heap_policy import KINDS as HEAPS
from etl.stages import DECODERS
from etl.stages.dtypes import DTYPES

PHASES = {
    "profile": "profiling the raw pipeline",
    "try": "trying the loaders",
    "write": "presaving",
    "split": "choosing how to split the CPUs",
    "check": "checking that all strategies load the same",
    "measure": "measuring",
    "trace": "tracing",
}

# Values of arguments that are left out, unless a configuration has others.
DEFAULTS = {
    "strategies": strategies.default_names(),
    "batch_size": 32,
    "dtype": "float32",
    "size": SIZE,
    "decoder": "pillow",
}
# Name of the strategy of `--config` in reports.
CONFIGURED = "configured"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    source = parser.add_argument(
        "source",
        type=str,
        metavar="SOURCE",
        help="images in folders, CSV or tar files, sequences in a folder, or the files of MNIST or CIFAR-10",
    )
    add_config_argument(parser, "SOURCE and its options, batch size and dtype; it is compared as `configured`", source)
    data = parser.add_argument_group("strategies and data")
    data.add_argument(
        "--strategies",
        type=_names,
        metavar="NAME,...",
        help=f"any of {', '.join(strategies.names())}, and loaders of your own as mine=package.module:function; the "
        f"others are compared with the first (default: {','.join(strategies.default_names())}; with --config: raw, and "
        "its strategy as given)",
    )
    data.add_argument(
        "--formats",
        type=_names,
        default=presave.formats()[:1],
        metavar="NAME,...",
        help=f"store formats: {', '.join(presave.formats())} (default: {presave.formats()[0]})",
    )
    data.add_argument(
        "--python",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="run this strategy in another environment: the path of its interpreter",
    )
    data.add_argument("--until", metavar="STAGE", help="presave after this stage (default: resize for images)")
    data.add_argument("--batch-size", type=int, metavar="N", help="records per batch (default: 32)")
    data.add_argument("--prefetch-size", type=int, default=2, metavar="N", help="batches loaded ahead (default: 2)")
    data.add_argument("--dtype", choices=tuple(DTYPES), help="dtype of features and weights (default: float32)")
    data.add_argument("--size", type=int, help="side of the images in pixels (default: 224)")
    data.add_argument("--decoder", choices=tuple(DECODERS), help="default: pillow")
    data.add_argument("--split", choices=("train", "test"), help="which set of MNIST or CIFAR-10 (default: train)")
    compute = parser.add_argument_group("compute")
    compute.add_argument(
        "--model",
        metavar="NAME",
        help="mlp, lenet, residual, lstm (default: by the shape of a record), or package.module:function, which is "
        "called with that shape and the number of outputs",
    )
    compute.add_argument(
        "--step",
        metavar="FUNCTION",
        help="package.module:function that returns your own training step, step(batch), instead of a model",
    )
    compute.add_argument(
        "--compute",
        default="training",
        metavar="HOW",
        help="training (default); inference: a forward pass of the model, which needs no labels; or simulated:20ms: a "
        "simulated device that takes 20 ms for a batch, and no CPU",
    )
    compute.add_argument(
        "--sync-every-step",
        action="store_true",
        help="wait for the device after every step; by default one step is in flight while the next batch is loaded",
    )
    compute.add_argument("--backend", choices=BACKENDS, default="auto")
    how = parser.add_argument_group("measurement")
    how.add_argument(
        "--cache", choices=CACHES, default="warm", help="warm: files are in memory; cold: every epoch reads the disk"
    )
    how.add_argument("--threads", type=int, metavar="N", help="CPUs for loading and compute together (default: all)")
    how.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="processes that train together, each on its part of the records and of the CPUs (default: 1)",
    )
    how.add_argument(
        "--heap",
        metavar="POLICY",
        default="retain",
        help=f"{', '.join(HEAPS)} (default: retain, which keeps freed pages; default lets glibc give them back, and "
        "the speed of a process then depends on where its heap happens to end)",
    )
    how.add_argument(
        "--gc",
        metavar="POLICY",
        default="default",
        help=f"the garbage collector: {', '.join(COLLECTORS)} (default: default)",
    )
    how.add_argument("--memory", type=_nbytes, metavar="SIZE", help="memory limit of a strategy, such as 2GB")
    how.add_argument(
        "--budget",
        type=_seconds,
        default=60.0,
        metavar="TIME",
        help="roughly how long the comparison takes (default: 60s)",
    )
    how.add_argument("--rounds", type=int, metavar="N", help="measure N rounds instead, however long they take")
    how.add_argument("--records", type=int, metavar="N", help="measure N records (default: as time allows)")
    how.add_argument(
        "--epoch-batches", type=int, metavar="N", help="an epoch is N batches, for loaders that do not end"
    )
    how.add_argument(
        "--check-epoch",
        action="store_true",
        help="measure whole epochs, however long they take: some loaders cannot be given fewer records, and only the "
        "amount can be compared of a part of a shuffled epoch",
    )
    how.add_argument(
        "--no-check",
        action="append",
        choices=tuple(RULES),
        default=[],
        metavar="RULE",
        help=f"skip the check of a fairness rule, which the report will mention: {', '.join(RULES)}",
    )
    how.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="SCENARIO",
        help="predict every strategy elsewhere: cpus=8,compute=5ms,disk=200MB/s,cache=50%%, or some of these "
        "(compute=2x takes twice as long); may be given several times",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="everything, for programs")
    output.add_argument("--html", type=Path, metavar="FILE", help="one page with charts, which needs no network")
    output.add_argument("--trace", type=Path, metavar="FILE", help="a timeline for Perfetto and chrome://tracing")
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare, show the report, and write the files that were requested."""
    for option in ("html", "trace"):
        check_file_path(getattr(arguments, option), f"--{option}")
    configuration = read_configuration(arguments)
    if configuration is not None:
        _take(configuration, arguments)
    fill(arguments, DEFAULTS)
    settings = Settings(
        source=arguments.source,
        strategies=arguments.strategies,
        formats=arguments.formats,
        until=arguments.until,
        batch_size=arguments.batch_size,
        dtype=arguments.dtype,
        backend=arguments.backend,
        pipeline=arguments.pipeline,
        model=arguments.model,
        step=arguments.step,
        compute=arguments.compute,
        sync_every_step=arguments.sync_every_step,
        cache=arguments.cache,
        threads=arguments.threads,
        ranks=arguments.ranks,
        rounds=arguments.rounds,
        budget_seconds=arguments.budget,
        records=arguments.records,
        prefetch_size=arguments.prefetch_size,
        heap=arguments.heap,
        gc=arguments.gc,
        memory_nbytes=arguments.memory,
        size=arguments.size,
        decoder=arguments.decoder,
        split=arguments.split,
        table_options=source_options(arguments) if configuration is None else dict(configuration.table_options),
        pythons=dict(arguments.python),
        configured={} if configuration is None else {CONFIGURED: _compared_settings(configuration)},
        seed=0 if configuration is None else configuration.seed,
        epoch_batches=arguments.epoch_batches,
        check_epoch=arguments.check_epoch,
        unchecked=tuple(dict.fromkeys(arguments.no_check)),
        what_if=tuple(dict.fromkeys(arguments.what_if)),
    )
    try:
        with _exit_on_sigterm(), _progress() as show:
            report = replace(run_comparison(settings, show), command=shlex.join(["etl", *sys.argv[1:]]))
    except ContradictionError as error:
        show_error(str(error))
        return 1
    except MeasurementError as error:
        if arguments.debug:
            print(error.text, file=sys.stderr)
        raise
    show_report(report, output_console())
    save_json(arguments.json, report.as_dict())
    if arguments.html is not None:
        save_text(arguments.html, render_page(report))
    save_json(arguments.trace, trace_events(report))
    return 0


def _take(configuration: Configuration, arguments: argparse.Namespace) -> None:
    """Compare the configured strategy, last, on its data; by default with raw and with itself as given."""
    given = {"batch_size": configuration.batch_size, "dtype": configuration.dtype, "decoder": configuration.decoder}
    if configuration.strategy_kind.reads_store and configuration.stage is None:
        given["until"] = None
    fill_from(configuration, arguments, given)
    others = arguments.strategies
    if others is None:
        others = tuple(dict.fromkeys(("raw", configuration.strategy)))
    arguments.strategies = (*others, f"{CONFIGURED}={configuration.strategy}")


def _compared_settings(configuration: Configuration) -> dict[str, Any]:
    """Return the configured settings, with those defaults that the other strategies may have otherwise."""
    kind, settings = configuration.strategy_kind, dict(configuration.settings)
    if not kind.is_foreign and kind.loads_ahead:
        settings.setdefault("prefetch_size", PREFETCH_SIZE)
    if kind.reads_store:
        settings.setdefault("format", presave.formats()[0])
    return settings


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit`, so that processes are ended and the temporary folder is removed."""
    if threading.current_thread() is not threading.main_thread():  # only that one can handle signals
        yield
        return

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not interrupt the cleaning
        raise SystemExit(128 + signal.SIGTERM)

    usual = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


@contextmanager
def _progress() -> Iterator[_Show]:
    """Yield a function that shows progress on standard error; it shows nothing if that is not a terminal."""
    console = PlainConsole(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[step]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        yield _Show(bar, bar.add_task("starting", total=1.0, step=""))


class _Show:
    """The progress of a comparison: the elapsed share of its time, the phase, and the predictions once there are any.

    Parameters
    ----------
    bar : Progress
        The progress bar.
    task : TaskID
        The task of that bar.
    """

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._has_predictions = False

    def __call__(self, progress: ComparisonProgress) -> None:
        step = "" if progress.total in (None, 1) else f"{progress.done + 1} of {progress.total}"
        if progress.phase == "measure":
            total = "" if progress.total is None else f" of {progress.total}"
            step = f"round {progress.done + 1}{total}"
        self._bar.update(self._task, description=PHASES[progress.phase], step=step)
        if progress.share is not None:
            self._bar.update(self._task, completed=progress.share)
        elif progress.total:
            self._bar.update(self._task, completed=progress.done / progress.total)
        if progress.predictions and not self._has_predictions:
            self._has_predictions = True
            predicted = ", ".join(f"{name} {seconds:,.2f} s" for name, seconds in progress.predictions.items())
            self._bar.console.print(f"predicted for an epoch: {predicted}", highlight=False)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"give the name of a strategy and an interpreter, mine=PYTHON, not {text!r}")
    return name, value


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text, "--budget")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _nbytes(text: str) -> int:
    try:
        return parse_nbytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
