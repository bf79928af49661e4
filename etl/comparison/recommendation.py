"""What to do, in two or three sentences, each of which rests on figures of the report.

What a reader must know beside the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import psutil

from etl import strategies
from etl.comparison.report import Report, SplitTrial, StrategyResult
from etl.comparison.results import Measurements, audits_of
from etl.comparison.rounds import MIN_TRIALS
from etl.comparison.settings import Candidate, Threads
from etl.comparison.units import bounds, nbytes, seconds
from etl.measuring.statistics import Interval

# Below this, a difference is not worth a change, whether it is real or not.
NEGLIGIBLE = 0.02


def recommend(report: Report, to_fastest: Mapping[str, Interval | None], source: str) -> list[str]:
    """Sentences. `to_fastest` has the wall time of each over that of the fastest, paired within rounds."""
    valid = [each for each in report.strategies if not each.disqualified]
    if not valid:
        return ["Nothing can be recommended: every strategy broke a rule of fairness, as told below."]
    fastest = min(valid, key=lambda each: each.parts.wall_seconds)
    slowest = max(valid, key=lambda each: each.parts.wall_seconds)
    if len(valid) == 1:
        return [
            f"Only {fastest.name} was compared: an epoch takes {seconds(fastest.parts.wall_seconds)}.",
            _bound(fastest),
        ]
    spread = slowest.parts.wall_seconds / fastest.parts.wall_seconds - 1
    simplest = min(valid, key=lambda each: _simplicity(each))
    if spread <= NEGLIGIBLE:
        kind = "Compute-bound" if fastest.parts.stall_seconds <= NEGLIGIBLE * fastest.parts.wall_seconds else "No gain"
        return [
            f"{kind}: all strategies are within {NEGLIGIBLE:.0%} of each other, so how {source} is loaded does not "
            f"matter here; stay with {simplest.name}, the simplest."
        ]
    chosen = min((each for each in valid if _as_good(each, fastest, to_fastest)), key=_simplicity)
    sentences = [_choice(chosen, next((each for each in valid if each.name == report.reference), None))]
    if chosen is not fastest:
        sentences[0] += f" {fastest.name} has not been shown to be faster by more than {NEGLIGIBLE:.0%}."
    if chosen.presaving is not None:
        sentences.append(_cost(chosen, any(each.presaving is None for each in valid)))
    sentences.append(_bound(chosen))
    return sentences


def _as_good(result: StrategyResult, fastest: StrategyResult, to_fastest: Mapping[str, Interval | None]) -> bool:
    """Whether it is the fastest, or was not shown to be slower than that by more than is negligible."""
    if result is fastest:
        return True
    ratio = to_fastest.get(result.name)
    if ratio is None or ratio.low is None:  # too few rounds to tell: go by the figures
        return result.parts.wall_seconds <= fastest.parts.wall_seconds * (1 + NEGLIGIBLE)
    return (ratio.low <= 1 and ratio.estimate <= 1 + 2 * NEGLIGIBLE) or ratio.estimate <= 1 + NEGLIGIBLE


def _simplicity(result: StrategyResult) -> tuple[bool, bool, bool, int]:
    """Return what to sort by, simplest first: worker processes cost most, then a store, the larger the more."""
    strategy = strategies.find(result.strategy)
    stored = 0 if result.presaving is None else result.presaving.nbytes
    return strategy.uses_processes, strategy.reads_store, strategy.loads_ahead, stored


def _choice(chosen: StrategyResult, reference: StrategyResult | None) -> str:
    wall = seconds(chosen.parts.wall_seconds)
    if reference is None:
        return f"Use {chosen.name}: an epoch takes {wall}."
    if chosen is reference:
        return f"Stay with {chosen.name}: an epoch takes {wall}, and nothing has been shown to be faster."
    ratio = chosen.ratio
    instead = f"{seconds(reference.parts.wall_seconds)} with {reference.name}"
    text = f"Use {chosen.name}: an epoch takes {wall} instead of {instead}"
    if ratio is None:
        return f"{text}."
    if ratio.low is None:
        return (
            f"{ratio.count} rounds are too few to recommend anything; so far {chosen.name} is the fastest, with "
            f"{wall} for an epoch instead of {instead}. Give it more time with --budget."
        )
    of_its_time = f"{ratio.estimate:.2f} of its time (95% interval {bounds(ratio)})"
    if not ratio.excludes_one:
        return (
            f"No difference from {reference.name} has been shown: with {chosen.name} an epoch takes {wall} instead of "
            f"{instead}, {of_its_time}."
        )
    return f"{text}, {of_its_time}."


def _cost(chosen: StrategyResult, is_without_store: bool) -> str:
    """What its store costs; and when that has paid off, where there is one without a store to compare with."""
    cost = chosen.presaving
    assert cost is not None  # noqa: S101 - for the type checker
    text = f"Presaving after {chosen.stage} takes {seconds(cost.write_seconds)} and {nbytes(cost.nbytes)} once"
    if not is_without_store:
        return f"{text}."
    if cost.break_even_epochs is None:
        return f"{text}, and does not pay off against the fastest strategy without a store."
    epochs = cost.break_even_epochs
    count = "within the first epoch" if epochs <= 1 else f"after {epochs:.1f} epochs"
    return f"{text}, and pays off {count}."


def _bound(result: StrategyResult) -> str:
    parts = result.parts
    waiting = parts.stall_seconds / parts.wall_seconds
    if waiting <= NEGLIGIBLE:
        return (
            f"With {result.name} training waits {waiting:.1%} of the time: compute is the limit, and faster loading "
            "would gain nothing more."
        )
    if parts.stall_seconds > parts.compute_alone_seconds:
        return f"With {result.name} training still waits {waiting:.0%} of the time: loading is the limit."
    return f"With {result.name} training waits {waiting:.0%} of the time."


def make_notes(measured: Measurements) -> list[str]:
    """Sentences: what failed, what was scaled, which runtime setting was not in force, and which store is too large for
    a warm cache.
    """
    scale = measured.scale
    found = [f"{measured.name(each)} failed: {reason}" for each, reason in measured.failed.items()]
    asked_for, reference = measured.workload.candidates()[0], measured.compared[0]
    if reference != asked_for:
        found.append(f"{measured.name(reference)} is the reference instead of {measured.name(asked_for)}.")
    if measured.no_server:
        found.append(f"It ended after {measured.rounds} rounds, since no other could begin: {measured.no_server}")
    if scale.measured < scale.records:
        found.append(
            f"Measured on {scale.measured:,} of {scale.records:,} records, chosen at random, and scaled: the first "
            "batch counts once, the others by their number."
        )
    for candidate in measured.compared:
        found += _split_notes(measured, candidate)
        inert = [each for each in audits_of(measured.samples[candidate]) if each.is_inert]
        found += [f"{measured.name(candidate)}: a setting was not in force: {each.alarm}" for each in inert]
    memory = psutil.virtual_memory().total
    for candidate in measured.compared:
        written = measured.written(candidate)
        nbytes = 0 if written is None else scale.amount(written.nbytes)
        if nbytes > memory / 2 and measured.workload.settings.cache == "warm":
            found.append(
                f"The store of {measured.name(candidate)} takes {nbytes / 1e9:,.1f} GB, and this machine has "
                f"{memory / 1e9:,.1f} GB of memory: epochs over the whole source will wait for the disk. Compare with "
                "--cache cold, too."
            )
    return found


def splits_of(measured: Measurements, candidate: Candidate) -> list[SplitTrial]:
    """The splits of the CPUs that `candidate` was tried with."""
    return [
        SplitTrial(
            compute_threads=split.compute,
            loading_threads=split.loading,
            trials=len(each),
            epoch_seconds=statistics.median(each) * measured.scale.batches,
        )
        for split, each in measured.trials.get(candidate, {}).items()
    ]


def _split_notes(measured: Measurements, candidate: Candidate) -> Iterator[str]:
    """Which split of the CPUs was taken, and what the others gave."""
    tried = {Threads(each.compute_threads, each.loading_threads): each for each in splits_of(measured, candidate)}
    if not tried:
        return
    threads = measured.threads(candidate)
    taken = tried.pop(threads)
    kind = "worker processes" if candidate.worker_processes else "loading threads"
    has = f"{measured.name(candidate)} has {_split(threads)} compute threads + {kind}"
    if min(each.trials for each in (taken, *tried.values())) < MIN_TRIALS:
        yield (
            f"{has}; other splits of the CPUs could not be tried {MIN_TRIALS} times in the time there was: give it "
            "more with --budget."
        )
        return
    others = ", ".join(f"{_split(split)} {seconds(each.epoch_seconds)}" for split, each in tried.items())
    cpus = measured.workload.cpus
    is_shared = threads.compute + threads.loading > cpus
    yield (
        f"{has}{f', which share the CPUs ({cpus})' if is_shared else ''}: the fastest split in {taken.trials} short "
        f"trials, with {seconds(taken.epoch_seconds)} an epoch; {others}."
    )


def _split(threads: Threads) -> str:
    return f"{threads.compute} + {threads.loading}"
