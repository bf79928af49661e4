"""`etl.compare` and `etl.tune`, with functions of a script or notebook; and what the commands share with them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypedDict, Unpack

from etl.arguments import parse_names, parse_nbytes, parse_seconds
from etl.comparison.judge.report import TuningResult
from etl.comparison.judge.rules import RULES
from etl.comparison.request.settings import Settings
from etl.comparison.run.carried import Given, carried_settings
from etl.comparison.run.comparison_progress import ComparisonProgress
from etl.comparison.run.phases import compare_as_given
from etl.comparison.show.report import Report
from etl.comparison.tuning.tuner import run_tuning, tuned_settings
from etl.comparison.tuning.tuning_results import TunedStrategy, Tuning

# Fields of `Settings` that are not arguments, with the argument to give instead; None if there is none.
INSTEAD = {
    "budget_seconds": "budget",
    "pythons": "python",
    "search": None,
    "source_name": None,
    "step": "make_step",
}
# Options whose field in `Settings` has another name, with what reads a text.
FIELDS: dict[str, tuple[str, Callable[[str], Any] | None]] = {
    "cpus": ("threads", None),
    "formats": ("formats", parse_names),
    "max_disk": ("max_disk_nbytes", parse_nbytes),
    "max_prepare": ("max_prepare_seconds", lambda text: parse_seconds(text, "max_prepare")),
    "memory": ("memory_nbytes", parse_nbytes),
    "no_check": ("unchecked", parse_names),
    "what_if": ("what_if", lambda text: (text,)),
}


class Options(TypedDict, total=False):
    """Keyword arguments that `compare` and `tune` share: options of the command line, with its defaults, and `seed`.

    `seed` decides on the order of the records and the initial weights. `etl compare --help` describes the others.
    Options that describe the source are arguments of its class, such as `etl.Csv`. Sizes are bytes or text such as
    "2GB", times seconds or text such as "10min".
    """

    backend: str
    batch_size: int
    cache: str
    check_epoch: bool
    compute: str
    cpus: int | None
    decoder: str
    device_memory: str
    dtype: str
    epoch_batches: int | None
    formats: Sequence[str]
    gc: str
    heap: str
    max_disk: int | str | None
    max_prepare: float | str | None
    memory: int | str | None
    no_check: Sequence[str]
    prefetch_size: int
    ranks: int
    records: int | None
    retune: bool
    rounds: int | None
    same_pixels: bool
    seed: int
    size: int
    split: str | None
    stages: bool
    sync_every_step: bool
    until: str | None
    what_if: Sequence[str]


def compare(
    source: Any,
    strategies: Sequence[Given] | Mapping[str, Given] | None = None,
    *,
    make_step: Callable[..., Any] | str | None = None,
    model: Callable[..., Any] | str | None = None,
    pipeline: Any = None,
    budget: str | float = "60s",
    python: Mapping[str, str] | None = None,
    progress: Callable[[ComparisonProgress], None] | None = None,
    **options: Unpack[Options],
) -> Report:
    """Compare ways to load `source`: end-to-end time of training or inference, as ETL plus compute.

    Every measurement is taken in a fresh process. Functions of a script or notebook are carried there with cloudpickle,
    so that the script needs no main guard, and nothing of this process is forked.

    Parameters
    ----------
    source : str, Path, source or data set
        A path as `open_source` takes it, "package.module:function", a sequence of records, a map-style data set, or a
        function that returns one of these. A table with labels is `etl.Csv("table.csv", label="kind")`.
    strategies : sequence or dict, optional
        Strategies to compare, by default those of `etl compare`. The first is the reference. Each is a name ("raw",
        "presaved", "package.module:function") or a function or class that is called with what its parameters ask for
        of a `Task` and returns an iterable of batches, one epoch an iteration. A dict gives them names for the report.
    make_step : callable or str, optional
        Called in each process with what its parameters ask for of a `Task`; returns `step(batch)`, which trains on a
        batch and may return the loss. It replaces `model`.
    model : callable or str, optional
        Name of a built-in model, or a function that returns one: called with the shape of a record and the number of
        outputs, or without arguments.
    pipeline : Pipeline, callable or str, optional
        Stages for the records of `source`, or a function that returns them; by default those that suit the source.
    budget : str or float
        Approximate time of the whole comparison, such as "60s" or "5min", or seconds.
    python : dict of str to str, optional
        Interpreter of another environment for a strategy, by its name in the report.
    progress : callable, optional
        Called with the progress after every step.
    **options
        Options of the command line by name, such as `batch_size=64`, `compute="inference"`, `cpus=4`, `memory="2GB"` or
        `what_if=["cpus=8,compute=5ms"]`; see `Options`.

    Returns
    -------
    Report
        Printed, it is the tables of `etl compare`; in a notebook, its page. `to_json` and `save` keep it.

    Raises
    ------
    ValueError
        If the input is wrong: the source, a record, the model, a function that cannot be carried, or a setting.
    MeasurementError
        If no strategy can be measured.
    ContradictionError
        If the metrics of the report contradict each other.

    Examples
    --------
    >>> report = etl.compare("photos", ["raw", "async-raw", "presaved"], batch_size=64)  # doctest: +SKIP
    >>> report.save("report.html")  # doctest: +SKIP
    """
    settings = _settings(compare, options, INSTEAD)
    with carried_settings(
        source,
        strategies,
        make_step=make_step,
        model=model,
        pipeline=pipeline,
        python=python,
        budget_seconds=_seconds(budget),
        **settings,
    ) as chosen:
        return run_comparison(chosen, progress)


def tune(
    source: Any,
    strategies: Sequence[Given] | Mapping[str, Given] | None = None,
    *,
    make_step: Callable[..., Any] | str | None = None,
    model: Callable[..., Any] | str | None = None,
    pipeline: Any = None,
    budget: str | float = "5min",
    python: Mapping[str, str] | None = None,
    progress: Callable[[ComparisonProgress], None] | None = None,
    **options: Unpack[Options],
) -> Tuning:
    """Find the settings of each strategy that are best for it, within the same time for each.

    What a loader of your own lets vary, it declares: `dataloader.settings = {"workers": (1, 2, 4)}`. Of a torch
    DataLoader that it returns, `num_workers` and others are varied without that.

    Parameters
    ----------
    source, strategies, make_step, model, pipeline, python, progress
        As for `compare`.
    budget : str or float
        Approximate time of all strategies together, such as "5min", or seconds.
    **options
        Options of the command line by name, such as `batch_size=64`, `memory="2GB"`, `max_disk="10GB"`,
        `max_prepare="10min"`, `same_pixels=True` or `retune=True`; see `Options`.

    Returns
    -------
    Tuning
        Printed, it is the tables of `etl tune`; in a notebook, its page.

    Raises
    ------
    ValueError
        If the input is wrong: the source, a record, the model, a function that cannot be carried, or a setting.
    MeasurementError
        If no strategy can be measured.

    Examples
    --------
    >>> print(etl.tune("photos", ["async-raw"], budget="2min"))  # doctest: +SKIP
    """
    settings = _settings(tune, options, {**INSTEAD, "tune_seconds": "budget"})
    with carried_settings(
        source, strategies, make_step=make_step, model=model, pipeline=pipeline, python=python, **settings
    ) as chosen:
        seconds = _seconds(budget) / max(1, len(chosen.strategies))
        return run_tuning(replace(chosen, tune_seconds=seconds), progress)


def _settings(
    function: Callable[..., Any], options: Mapping[str, Any], instead: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the `options` of `function` as fields of `Settings`; raise `TypeError` if it has no such argument."""
    arguments = inspect.signature(function).parameters.keys() | Options.__annotations__.keys()
    known = {each.name for each in fields(Settings)} - instead.keys() | arguments - {"options"}
    settings = {}
    for name, value in options.items():
        if name not in known:
            near = instead[name] if name in instead else next(iter(difflib.get_close_matches(name, known, 1)), None)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(arguments - {'options'}))}"
            raise TypeError(f"etl.{function.__name__} has no argument {name!r}: {hint}")
        field, parse = FIELDS.get(name, (name, None))
        if isinstance(value, str) and parse is not None:
            value = parse(value)
        settings[field] = tuple(value) if isinstance(value, list) else value
    return settings


def _seconds(budget: str | float) -> float:
    return parse_seconds(budget, "budget") if isinstance(budget, str) else float(budget)


def run_comparison(settings: Settings, progress: Callable[[ComparisonProgress], None] | None = None) -> Report:
    """Compare the strategies of `settings` on their source, and return the report.

    With `settings.tune_seconds`, each strategy is tuned first, and compared in its best configuration.

    After an interruption, the report has the complete rounds so far; if there are none, `KeyboardInterrupt` is raised.
    Other errors, and `progress`, are those of `compare`.
    """
    unknown = sorted(set(settings.unchecked) - set(RULES))
    if unknown:
        raise ValueError(f"--no-check: unknown rule {', '.join(unknown)}; the rules are {', '.join(RULES)}")
    if settings.tune_seconds is None:
        return Report.of(compare_as_given(settings, progress))
    tuning = run_tuning(settings, progress)
    if tuning.stopped_early:
        raise KeyboardInterrupt  # what is finished has been kept
    report = Report.of(compare_as_given(tuned_settings(settings, tuning), progress))
    results = [_tuned(each) for each in tuning.strategies]
    failed = [f"{name} could not be tuned, so its settings are as given: {why}" for name, why in tuning.failed.items()]
    return replace(report, tuning=results, notes=[*(each.advice for each in results), *failed, *report.notes])


def _tuned(strategy: TunedStrategy) -> TuningResult:
    return TuningResult(
        name=strategy.name,
        given=strategy.given,
        chosen=strategy.chosen,
        advice=strategy.advice(),
        configurations=len(strategy.configurations),
        seconds=strategy.seconds,
        is_cached=strategy.is_cached,
    )


def _completed(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with each option, which editors and notebooks complete."""
    signature = inspect.signature(function)
    defaults = {each.name: each.default for each in fields(Settings)}
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[FIELDS.get(name, (name,))[0]], annotation=kind
        )
        for name, kind in Options.__annotations__.items()
    ]
    return signature.replace(parameters=[*list(signature.parameters.values())[:-1], *options])


compare.__signature__ = _completed(compare)  # type: ignore[attr-defined]
tune.__signature__ = _completed(tune)  # type: ignore[attr-defined]
