"""`etl compare SOURCE`: compare ways of loading SOURCE: which one to use, what it gains, and how sure that is."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from typing import Any

import presave
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
from etl.commands.config_argument import add_config_argument, fill, fill_from
from etl.commands.output import add_page_arguments, deliver, output_path, save_json, save_page, show_error
from etl.commands.source_arguments import SOURCES, add_source_arguments
from etl.comparison.compare import run_comparison
from etl.comparison.judge.contradictions import ContradictionError
from etl.comparison.judge.rules import RULES
from etl.comparison.show.page import render_page
from etl.comparison.show.report_table import show_report
from etl.comparison.show.trace import trace_events
from etl.configuration import PREFETCH_SIZE, Configuration

# Said after Ctrl-C.
INTERRUPTED = "no files were left; what --tune has found is kept"
# Without an option for a file, the result is what is shown.
ONLY_SHOWS = True
# Name of the strategy of `--config` in reports.
CONFIGURED = "configured"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument("source", metavar="SOURCE", help=SOURCES)
    add_config_argument(parser, "SOURCE and its options, batch size and dtype; it is compared as `configured`", source)
    data = parser.add_argument_group("strategies and data")
    data.add_argument(
        "--strategies",
        "--strategy",
        type=parse_names,
        action="extend",
        metavar="NAME,...",
        help=f"any of {', '.join(strategies.names())}, and loaders of your own as mine=package.module:function; the "
        f"others are compared with the first (default: {','.join(strategies.default_names())}; with --config: raw, and "
        "its strategy as given)",
    )
    data.add_argument(
        "--formats",
        "--format",
        type=parse_names,
        action="extend",
        metavar="NAME,...",
        help=f"store formats: {', '.join(presave.formats())} (default: {presave.formats()[0]})",
    )
    add_data_arguments(data)
    add_compute_arguments(parser)
    how = parser.add_argument_group("measurement")
    add_condition_arguments(how)
    how.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="processes that train together, each on its part of the records and of the CPUs (default: 1)",
    )
    how.add_argument(
        "--memory",
        "--max-memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="memory limit of a strategy, such as 2GB (default: what is free, within the limits of the container)",
    )
    how.add_argument(
        "--budget",
        type=duration,
        default=60.0,
        metavar="TIME",
        help="roughly how long the comparison takes (default: 60s)",
    )
    how.add_argument("--rounds", type=int, metavar="N", help="measure N rounds instead, however long they take")
    how.add_argument("--records", type=int, metavar="N", help="measure N records (default: as time allows)")
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
    how.add_argument(
        "--stages",
        action="store_true",
        help="also show where to presave: write a store after each stage, and load from it",
    )
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--tune",
        action="store_true",
        help="find the best settings of each strategy first, as `etl tune` does; a loader of your own is compared as "
        "given, and tuned",
    )
    tuning.add_argument(
        "--tune-budget",
        type=duration,
        default=TUNE_SECONDS,
        metavar="TIME",
        help=f"roughly how long tuning takes, all strategies together (default: {TUNE_SECONDS / 60:.0f}min)",
    )
    add_tuning_arguments(tuning)
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=output_path, metavar="FILE", help="everything, for programs")
    add_page_arguments(output)
    output.add_argument("-v", "--verbose", action="store_true", help="show losses, memory and notes, too")
    output.add_argument(
        "--trace", type=output_path, metavar="FILE", help="a timeline for Perfetto and chrome://tracing"
    )
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare, show the report, and write the files that were requested."""
    configuration = None if arguments.config is None else Configuration.read(arguments.config)
    given: dict[str, Any] = {}
    if configuration is not None:
        _take(configuration, arguments)
        given = {
            "table_options": dict(configuration.table_options),
            "configured": {CONFIGURED: _compared_settings(configuration)},
            "seed": configuration.seed,
        }
    fill(arguments, {"strategies": strategies.default_names(), "formats": presave.formats()[:1], **DEFAULTS})
    settings = settings_of(
        arguments,
        strategies=tuple(arguments.strategies),
        formats=tuple(arguments.formats),
        budget_seconds=arguments.budget,
        unchecked=tuple(dict.fromkeys(arguments.no_check)),
        what_if=tuple(dict.fromkeys(arguments.what_if)),
        tune_seconds=arguments.tune_budget / max(1, len(arguments.strategies)) if arguments.tune else None,
        **given,
    )
    try:
        with showing_progress(arguments.debug) as show:
            report = replace(run_comparison(settings, show), command=shlex.join(["etl", *sys.argv[1:]]))
    except ContradictionError as error:
        show_error(str(error))
        return 1
    deliver(
        lambda: save_json(arguments.json, report.as_dict()),
        lambda: save_page(arguments.html, arguments.open, lambda: render_page(report)),
        lambda: save_json(arguments.trace, trace_events(report)),
        show=lambda console: show_report(report, console, is_whole=arguments.verbose),
    )
    return 0


def _take(configuration: Configuration, arguments: argparse.Namespace) -> None:
    """Compare the configured strategy, last, on its data; by default with raw and with itself as given."""
    if configuration.dtype is None and arguments.dtype is None and arguments.step is None:
        raise ValueError(
            f'{configuration.file} says dtype = "unchanged", but a model takes one dtype; give it, such as '
            "--dtype float32"
        )
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
