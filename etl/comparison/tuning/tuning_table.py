"""The result of tuning as tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from etl.tables import print_table
from etl.units import bounds, byte_scale, counted, describe_settings, time_scale

if TYPE_CHECKING:
    from etl.comparison.tuning.tuning_results import TriedConfiguration, TunedStrategy, Tuning

# Rows of the table of a strategy, unless more are on the Pareto front.
MAX_ROWS = 8
# Reasons that are printed for each strategy, of configurations that failed.
MAX_REASONS = 5
LEGEND = (
    "#: place by speed among all that were tried. epoch: wall time of all records. ratio: this time divided by that of "
    "the given settings, paired within rounds. memory: peak of the process and its workers. front: no other "
    "configuration is as good in epoch, prepare, disk and memory together."
)
KEPT_LEGEND = " kept: the given settings are the choice."


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Print what was found: advice and the best configurations of each strategy, and the fastest of all strategies."""
    if tuning.stopped_early:
        console.print("STOPPED EARLY: not all configurations were tried", style="bold yellow")
    for each in tuning.strategies:
        _show_strategy(each, console)
    for name, reason in tuning.failed.items():
        console.print(f"{name} could not be tuned: {reason}", style="red")
    if tuning.strategies:
        has_kept = any(not each.chosen and each.is_recommended for each in tuning.strategies)
        console.print(LEGEND + (KEPT_LEGEND if has_kept else ""), style="dim")
    console.print(tuning.conclusion(), style="bold")
    measured = f"{tuning.measured_records:,} of {tuning.source_records:,} records"
    console.print(f"{measured} of {tuning.source}, in {tuning.seconds:.0f} s", style="dim")


def shown_configurations(strategy: TunedStrategy) -> list[int]:
    """Return the indices of the configurations to show, the fastest first.

    They are the given one, the chosen one, and those on the front; then the next fastest, until there are `MAX_ROWS`.
    """
    order = sorted(range(len(strategy.configurations)), key=lambda index: _rank(strategy, index))
    needed = sum(_rank(strategy, index) < _OTHERS for index in order)
    return sorted(order[: max(MAX_ROWS, needed)])


_OTHERS = 2


def _rank(strategy: TunedStrategy, index: int) -> int:
    each = strategy.configurations[index]
    if each in (strategy.as_given, strategy.best):
        return 0
    return 1 if each.is_on_front else _OTHERS


def mark_of(strategy: TunedStrategy, configuration: TriedConfiguration) -> str:
    """Return "given", "chosen", "kept" for the given one if it is the choice, or nothing."""
    if configuration == strategy.best and strategy.is_recommended:
        return "chosen" if strategy.chosen else "kept"
    return "given" if configuration == strategy.as_given else ""


def settings_of(configuration: TriedConfiguration) -> str:
    """Return the settings of a configuration that differ from the given ones, as text."""
    return describe_settings(configuration.settings) or "as given"


def given_settings(strategy: TunedStrategy) -> str:
    """Return the values of the settings that were given, as text."""
    return ", ".join(describe_settings({name: value}) for name, value in strategy.given.items())


def _show_strategy(strategy: TunedStrategy, console: Console) -> None:
    console.print(strategy.advice(), style="bold")
    if strategy.given:
        console.print(f"as given: {given_settings(strategy)}", style="dim")
    shown = shown_configurations(strategy)
    table = _table(strategy, shown)
    epoch = str(table.columns[2].header)
    print_table(table, console, first=(epoch, "ratio", "95% interval", "settings", "mark"))
    for line in _remarks(strategy, shown):
        console.print(line)
    for settings, reason in list(strategy.failed.items())[:MAX_REASONS]:
        console.print(f"  {settings}: {reason}", style="red")
    console.print()


def _table(strategy: TunedStrategy, shown: list[int]) -> Table:
    configurations = [strategy.configurations[index] for index in shown]
    costs = [each.costs for each in configurations]
    epoch, prepare = time_scale(each.seconds for each in costs), time_scale(each.prepare_seconds for each in costs)
    disk, memory = byte_scale(each.disk_nbytes for each in costs), byte_scale(each.memory_nbytes for each in costs)
    has_ratios = any(each.ratio is not None for each in configurations)
    table = Table("#", "settings")
    numbers = [f"epoch, {epoch.unit}", *(("ratio", "95% interval") if has_ratios else ())]
    numbers += [f"prepare, {prepare.unit}", f"disk, {disk.unit}"] if strategy.is_prepared else []
    for heading in (*numbers, f"memory, {memory.unit}"):
        table.add_column(heading, justify="right")
    table.add_column("mark")
    for index, each in zip(shown, configurations, strict=True):
        table.add_row(
            f"{index + 1} {mark_of(strategy, each)}".strip(),
            settings_of(each),
            epoch.number(each.costs.seconds),
            *(_ratio(strategy, each) if has_ratios else ()),
            *(
                (prepare.number(each.costs.prepare_seconds), disk.number(each.costs.disk_nbytes))
                if strategy.is_prepared
                else ()
            ),
            memory.number(each.costs.memory_nbytes),
            "dropped" if each.dropped else "front" if each.is_on_front else "",
            style="dim" if each.dropped else "bold" if each == strategy.best else "",
        )
    return table


def _ratio(strategy: TunedStrategy, configuration: TriedConfiguration) -> tuple[str, str]:
    if configuration.ratio is None:
        return "1" if configuration == strategy.as_given else "", ""
    return f"{configuration.ratio.estimate:.2f}", bounds(configuration.ratio)


def _remarks(strategy: TunedStrategy, shown: list[int]) -> list[str]:
    """Return lines on why configurations were dropped, and on what the table leaves out."""
    configurations = strategy.configurations
    dropped: dict[str, list[str]] = {}
    for index in shown:
        if configurations[index].dropped:
            dropped.setdefault(configurations[index].dropped, []).append(f"#{index + 1}")
    lines = [
        f"{', '.join(numbers)} {'was' if len(numbers) == 1 else 'were'} dropped: {reason}"
        for reason, numbers in dropped.items()
    ]
    parts = []
    others = [each for index, each in enumerate(configurations) if index not in shown]
    if others:
        count = sum(bool(each.dropped) for each in others)
        were_dropped = f", {'all' if count == len(others) else f'{count:,}'} dropped" if count else ""
        parts.append(f"{len(others):,} more tried{were_dropped}")
    if strategy.untried:
        parts.append(f"no time for {counted(strategy.untried, 'other', 'others')}")
    took = f"{strategy.seconds:.0f} s"
    parts.append(f"the result of an earlier run, which took {took}" if strategy.is_cached else f"tuned in {took}")
    failed = len(strategy.failed)
    if failed:
        parts.append(f"{failed:,} failed{f', the first {MAX_REASONS}' if failed > MAX_REASONS else ''}:")
    return [*lines, "; ".join(parts)]
