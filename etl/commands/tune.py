"""`etl tune SOURCE`: find the settings of each strategy that are best for it."""

from __future__ import annotations

import argparse
from pathlib import Path

from etl import strategies
from etl.arguments import parse_names
from etl.commands.comparison_arguments import (
    DEFAULTS,
    TUNE_SECONDS,
    add_compute_arguments,
    add_condition_arguments,
    add_data_arguments,
    add_tuning_arguments,
    duration,
    settings_of,
    size_in_bytes,
)
from etl.commands.comparison_progress import showing_progress
from etl.commands.config_argument import fill
from etl.commands.output import STANDARD_OUTPUT, add_page_arguments, deliver, output_path, save_json, save_page
from etl.commands.source_arguments import SOURCES, add_source_arguments
from etl.comparison.request.settings import Settings
from etl.comparison.tuning.tuner import run_tuning
from etl.comparison.tuning.tuning_page import render_tuning_page
from etl.comparison.tuning.tuning_results import TunedStrategy, Tuning, tuning_json
from etl.comparison.tuning.tuning_table import show_tuning
from etl.configuration import Configuration
from etl.functions import find_function, parameters_of
from etl.sources import MapDataset, open_source
from etl.sources.named import is_source_name
from etl.strategies import canonical, find_prepare

# Without an option for a file, the result is what is shown.
ONLY_SHOWS = True
# Said after Ctrl-C.
INTERRUPTED = "strategies that were finished are kept, and the same command goes on with the others"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help=SOURCES)
    data = parser.add_argument_group("strategies and data")
    data.add_argument(
        "--strategies",
        "--strategy",
        type=parse_names,
        action="extend",
        metavar="NAME",
        help=f"any of {', '.join(strategies.names())}, or a loader of your own as mine=package.module:function; may be "
        f"given several times (default: {','.join(strategies.default_names())})",
    )
    add_data_arguments(data)
    add_compute_arguments(parser)
    conditions = parser.add_argument_group("measurement")
    add_condition_arguments(conditions)
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--budget",
        type=duration,
        default=TUNE_SECONDS,
        metavar="TIME",
        help=f"roughly how long it takes, all strategies together (default: {TUNE_SECONDS / 60:.0f}min)",
    )
    tuning.add_argument(
        "--max-memory",
        "--memory",
        dest="memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="most memory of a strategy, such as 2GB",
    )
    add_tuning_arguments(tuning)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--toml",
        type=output_path,
        metavar="FILE",
        help="the best settings of the fastest strategy, for `etl compare --config`, `etl presave --config` and "
        "`etl.from_config`",
    )
    output.add_argument("--json", type=output_path, metavar="FILE", help="everything, for programs")
    add_page_arguments(output)
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tune, show what was found, and write the files that were requested; return 1 if nothing can be recommended."""
    if arguments.toml == STANDARD_OUTPUT:
        raise ValueError("--toml -: give the path of a file, because the store is beside it")
    fill(arguments, {"strategies": strategies.default_names(), **DEFAULTS})
    chosen = tuple(arguments.strategies)
    seconds = arguments.budget / max(1, len(chosen))
    settings = settings_of(arguments, strategies=chosen, tune_seconds=seconds)
    with showing_progress(arguments.debug) as show:
        tuning = run_tuning(settings, show)
    deliver(
        lambda: save_json(arguments.json, tuning_json(tuning)),
        lambda: save_page(arguments.html, arguments.open, lambda: render_tuning_page(tuning)),
        lambda: _save_configuration(settings, tuning, arguments.toml),
        show=lambda console: show_tuning(tuning, console),
    )
    return 1 if tuning.fastest is None else 0


def _save_configuration(settings: Settings, tuning: Tuning, path: Path | None) -> None:
    """Write the best configuration of the fastest strategy, unless there is no `path`, or no such strategy."""
    fastest = tuning.fastest
    if path is None or fastest is None:
        return
    if fastest.name in settings.pythons:
        raise ValueError(f"--toml: {fastest.name}, the fastest, runs in another Python, which no file can say")
    # A user's loader may have been tuned to None. Elsewhere it says that a value is unknown, or the default.
    values = {
        name: value
        for name, value in {**fastest.given, **fastest.chosen}.items()
        if value is not None or (fastest.is_foreign and name in fastest.chosen)
    }
    # A setting of a user's loader may have any name.
    decoder = settings.decoder if fastest.is_foreign else str(values.pop("decoder", settings.decoder))
    ratio = fastest.best.ratio
    keeps_dtypes = (
        not fastest.is_foreign
        and settings.step is not None
        and is_source_name(settings.source)
        and isinstance(open_source(settings.source, settings.split, **settings.table_options), MapDataset)
    )
    configuration = Configuration(
        source=settings.source,
        strategy=fastest.strategy,
        store=str(path.with_suffix(".store")) if _needs_store(fastest) else None,
        split=settings.split,
        pipeline=settings.pipeline,
        size=settings.size,
        decoder=decoder,
        table_options=settings.table_options,
        batch_size=settings.batch_size,
        dtype=None if keeps_dtypes else settings.dtype,
        seed=settings.seed,
        settings=canonical(values),
        result={
            "epoch_seconds": fastest.best.costs.seconds,
            "ratio": None if ratio is None else ratio.estimate,
            "ratio_low": None if ratio is None else ratio.low,
            "ratio_high": None if ratio is None else ratio.high,
            "processor": tuning.machine.get("processor"),
            "cpus": tuning.machine.get("cpus"),
            "started_at": tuning.started_at,
        },
    )
    configuration.write(path, fastest.advice())


def _needs_store(strategy: TunedStrategy) -> bool:
    """Return True if a strategy reads a store, or a user's loader has files of its own."""
    kind = strategies.find(strategy.strategy)
    if kind.function is None:
        return kind.reads_store
    function = find_function(kind.function, "--strategy")
    return find_prepare(function) is not None or any(each.name == "folder" for each in parameters_of(function))
