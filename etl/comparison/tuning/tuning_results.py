"""Results of tuning: the configurations that were tried, what each costs, the choice, and advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etl.comparison.judge.noise import THROTTLED_LIMIT
from etl.comparison.judge.recommendation import NEGLIGIBLE
from etl.measuring.statistics import Interval
from etl.measuring.values import JsonValues
from etl.units import bounds, describe_settings, ratio, seconds

# Version of `etl tune --json`, whose schema is tuning.schema.json.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Costs(JsonValues):
    """The costs of a configuration, for the whole source.

    Attributes
    ----------
    seconds : float
        Wall time of an epoch.
    prepare_seconds : float
        Time to write its store, or what a user's loader prepares; 0 without either.
    disk_nbytes : int
        Bytes of these files.
    memory_nbytes : int
        Peak memory of the process and its workers together.
    """

    seconds: float
    prepare_seconds: float
    disk_nbytes: int
    memory_nbytes: int

    def dominates(self, other: Costs) -> bool:
        """Return True if no cost is higher than those of `other`, and one is lower, by more than `NEGLIGIBLE`."""
        own, others = vars(self), vars(other)
        return all(own[name] <= others[name] * (1 + NEGLIGIBLE) for name in own) and any(
            own[name] * (1 + NEGLIGIBLE) < others[name] for name in own
        )


@dataclass(frozen=True)
class TriedConfiguration(JsonValues):
    """A configuration of a strategy that was tried.

    Attributes
    ----------
    settings : dict
        The settings that differ from those that were given. Those of this package's strategies are "stage", "format"
        and the ones that `Candidate` has; a user's loader has those that it declares, and those of a torch
        DataLoader that it returns.
    costs : Costs
        What it costs.
    trials : int
        Fresh processes that measured it.
    is_finalist : bool
        True if it was measured until the last round.
    ratio : Interval or None
        Its wall time divided by that of the given configuration, paired within the rounds that have both; None if
        there are none, and for the given configuration.
    dropped : str
        Why it may not be chosen, such as a limit that it exceeds; empty otherwise.
    is_on_front : bool
        True if no other configuration that may be chosen is as good or better in all costs.
    turns : int
        Samples that were taken of it: two in each round.
    left : str
        Why it left the race before the last round, such as that it was slower than the best; empty otherwise.
    """

    settings: Mapping[str, Any]
    costs: Costs
    trials: int
    is_finalist: bool = False
    ratio: Interval | None = None
    dropped: str = ""
    is_on_front: bool = False
    turns: int = 0
    left: str = ""


@dataclass(frozen=True)
class TunedStrategy(JsonValues):
    """A strategy, and the configuration that was best for it.

    Attributes
    ----------
    name : str
        Name in reports.
    strategy : str
        The strategy, or "package.module:function".
    is_foreign : bool
        True if a user's function loads.
    given : dict
        Values of the settings that were given.
    chosen : dict
        The settings of the chosen configuration that differ from these; empty if none was shown to be better.
    configurations : list of TriedConfiguration
        All that were tried, the fastest first.
    untried : int
        Configurations of the same settings for which there was no time.
    failed : dict of str to str
        Reasons why configurations could not be measured, by their settings as text.
    seconds : float
        How long tuning took.
    is_cached : bool
        True if this is the result of an earlier run.
    limits : dict of str to float
        The limits of `Limits` that were set.
    source_records, measured_records : int
        Records of the source, and those that were measured.
    throttled : float
        Share of the periods of a CPU quota in which it was used up: the median sample.
    """

    name: str
    strategy: str
    is_foreign: bool
    given: Mapping[str, Any]
    chosen: Mapping[str, Any]
    configurations: list[TriedConfiguration]
    untried: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_cached: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    source_records: int = 0
    measured_records: int = 0
    throttled: float = 0.0

    @property
    def best(self) -> TriedConfiguration:
        """The chosen configuration."""
        return next(each for each in self.configurations if each.settings == self.chosen)

    @property
    def as_given(self) -> TriedConfiguration:
        """The configuration as it was given."""
        return next(each for each in self.configurations if not each.settings)

    @property
    def is_recommended(self) -> bool:
        """True if its chosen configuration, or the given one, exceeds no limit, and no CPU quota was used up."""
        return not self.best.dropped and not self.is_throttled

    @property
    def is_throttled(self) -> bool:
        """True if a CPU quota was used up so often that nothing is claimed."""
        return self.throttled > THROTTLED_LIMIT

    @property
    def is_prepared(self) -> bool:
        """True if a configuration writes files before the first epoch."""
        return any(each.costs.prepare_seconds or each.costs.disk_nbytes for each in self.configurations)

    def advice(self) -> str:
        """Return a sentence that says what to set, and what it gains."""
        best, given = self.best, self.as_given
        if self.is_throttled:
            return (
                f"{self.name}: no settings can be recommended: a CPU quota was used up in {self.throttled:.0%} of its "
                "periods (cpu.stat), so times depend on when the system stopped the processes. Raise the quota, or use "
                "fewer CPUs with --cpus."
            )
        if best.dropped:
            return f"{self.name}: no configuration can be recommended: as given, {best.dropped}."
        if not self.chosen:
            others = len(self.configurations) - 1
            if not others:
                return f"{self.name}: leave the settings as they are; no other configuration was measured."
            tried = "the only other configuration has not" if others == 1 else f"none of the {others:,} others has"
            return f"{self.name}: leave the settings as they are; {tried} been shown to be faster."
        if best.ratio is None:
            share = f"{ratio(best.costs.seconds / given.costs.seconds)} of the time, without rounds to confirm it"
        else:
            interval = "" if best.ratio.low is None else f" (95% interval {bounds(best.ratio)})"
            share = f"{ratio(best.ratio.estimate)} of the time{interval}"
        reason = f"; as given, {given.dropped}" if given.dropped else ""
        return f"{self.name}: set {describe_settings(self.chosen)}: {share}{reason}."


@dataclass(frozen=True)
class Tuning(JsonValues):
    """The result of `etl tune`.

    Attributes
    ----------
    source : str
        The source, as reports call it.
    source_records, measured_records : int
        Records of the source, and the most that were measured.
    settings : dict
        Settings that were the same for all: batch size, dtype, compute, CPUs and so on.
    machine, versions : dict
        The machine, and the versions of packages that affect speed.
    started_at : str
        When tuning started, in ISO format.
    seconds : float
        How long it took.
    strategies : list of TunedStrategy
        The strategies, in the requested order.
    failed : dict of str to str
        Reasons why strategies could not be tuned, by name.
    stopped_early : bool
        True if it was interrupted.
    """

    source: str
    source_records: int
    measured_records: int
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    started_at: str
    seconds: float
    strategies: list[TunedStrategy]
    failed: Mapping[str, str] = field(default_factory=dict)
    stopped_early: bool = False

    def __str__(self) -> str:
        """Return the tables of `etl tune`."""
        from etl.comparison.show.report_table import as_text
        from etl.comparison.tuning.tuning_table import show_tuning

        return as_text(lambda console: show_tuning(self, console))

    def __repr__(self) -> str:
        return f"<Tuning of {self.source}: {', '.join(each.name for each in self.strategies)}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        from etl.comparison.show.page import framed
        from etl.comparison.tuning.tuning_page import render_tuning_page

        return framed(render_tuning_page(self), "tuning")

    @property
    def fastest(self) -> TunedStrategy | None:
        """The strategy whose chosen configuration is the fastest; None if none can be recommended."""
        return next(iter(self._from_fastest()), None)

    def conclusion(self) -> str:
        """Return a sentence that names the fastest strategy, and says by how much others are slower."""
        recommended = self._from_fastest()
        if not recommended:
            return "No strategy can be recommended."
        fastest, *others = recommended
        wall = fastest.best.costs.seconds
        settings = f"with {describe_settings(fastest.chosen)}" if fastest.chosen else "as given"
        found = f"Fastest: {fastest.name} {settings}, {seconds(wall)} for an epoch"
        slower = [(each.name, each.best.costs.seconds / wall) for each in others]
        if not slower:
            return f"{found}; no other strategy can be recommended." if len(self.strategies) > 1 else f"{found}."
        if slower[-1][1] <= 1 + NEGLIGIBLE:
            return f"{found}; all strategies are within {NEGLIGIBLE:.0%} of each other."
        (following, share), (slowest, largest) = slower[0], slower[-1]
        found = f"{found}; {following} takes {ratio(share)} times as long"
        if len(slower) > 1:
            found = f"{found}, and {slowest}, the slowest, {ratio(largest)} times"
        return f"{found} (one was tuned after the other; etl compare measures them in turns)."

    def _from_fastest(self) -> list[TunedStrategy]:
        recommended = [each for each in self.strategies if each.is_recommended]
        return sorted(recommended, key=lambda each: each.best.costs.seconds)


@dataclass(frozen=True)
class Limits:
    """Limits on the peak memory of a configuration, the size of its files, and the time to prepare them; see `Costs`.

    They hold for the whole source; None for no limit.
    """

    memory_nbytes: int | None = None
    disk_nbytes: int | None = None
    prepare_seconds: float | None = None

    def exceeded_by(self, costs: Costs) -> str:
        """Return a phrase that says which limit `costs` exceed; empty if none."""
        if self.memory_nbytes is not None and costs.memory_nbytes > self.memory_nbytes:
            return f"it takes {costs.memory_nbytes / 1e6:,.0f} MB of memory, above --max-memory"
        if self.disk_nbytes is not None and costs.disk_nbytes > self.disk_nbytes:
            return f"it takes {costs.disk_nbytes / 1e6:,.0f} MB on disk, above --max-disk"
        if self.prepare_seconds is not None and costs.prepare_seconds > self.prepare_seconds:
            return f"its preparation takes {costs.prepare_seconds:,.0f} s, above --max-prepare"
        return ""

    def as_dict(self) -> dict[str, float]:
        """Return the limits that are set, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """Return JSON values: the fields of the result, and what is derived from them.

    Derived values are the name of the `fastest` strategy, None if none can be recommended; the `conclusion`; and for
    each strategy its `advice`, and `is_recommended`. `Tuning.from_json` does not take them.
    """
    values = tuning.to_json()
    fastest = tuning.fastest
    strategies = [
        {**strategy, "advice": each.advice(), "is_recommended": each.is_recommended}
        for strategy, each in zip(values.pop("strategies"), tuning.strategies, strict=True)
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        **values,
        "strategies": strategies,
        "fastest": None if fastest is None else fastest.name,
        "conclusion": tuning.conclusion(),
    }


def with_front(configurations: Iterable[TriedConfiguration]) -> list[TriedConfiguration]:
    """Return the configurations, the fastest first, with those marked that are on the Pareto front of all costs."""
    chosen = sorted(configurations, key=lambda each: each.costs.seconds)
    allowed = [each.costs for each in chosen if not each.dropped]
    return [
        replace(each, is_on_front=not each.dropped and not any(other.dominates(each.costs) for other in allowed))
        for each in chosen
    ]
