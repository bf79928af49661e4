"""Sentences for the reader: a recommendation, and notes on how to read the metrics."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from etl.comparison.judge.report import ReportData, StrategyResult
from etl.comparison.judge.results import Measurements, audits_of, presaving_of, splits_of
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.measuring.statistics import MIN_ROUNDS, Interval, Outcome
from etl.runtime.resources import usable_nbytes
from etl.training.compute import INFERENCE, TRAINING
from etl.units import bounds, counted, nbytes, seconds

# A smaller difference is not worth a change, even if it is real.
NEGLIGIBLE = 0.02
# First batches that take so many times as long as the others, and such a share of the epoch, are not those of workers
# that start: perhaps all records are loaded before them.
SLOW_START, SLOW_START_SHARE = 5.0, 0.1


def recommend(report: ReportData, ratios: Mapping[tuple[str, str], Interval], source: str) -> list[str]:
    """Return one to three sentences that recommend a strategy, each based on metrics of the report.

    The simplest strategy is recommended unless another one has been shown to be faster, by more than is negligible; and
    that one unless yet another has.
    """
    valid = [each for each in report.strategies if not each.disqualified]
    if not valid:
        return ["Nothing can be recommended: every strategy broke a rule of fairness (see below)."]
    if report.noise.is_throttled:
        return [
            f"Nothing is recommended: a CPU quota was used up in {report.noise.throttled:.0%} of its periods, so no "
            "difference between strategies is claimed (see below)."
        ]
    fastest = min(valid, key=lambda each: each.parts.wall_seconds)
    slowest = max(valid, key=lambda each: each.parts.wall_seconds)
    if len(valid) == 1:
        return [
            f"Only {fastest.name} was compared: an epoch takes {seconds(fastest.parts.wall_seconds)}.",
            _bound(fastest, report),
        ]
    spread = slowest.parts.wall_seconds / fastest.parts.wall_seconds - 1
    simplest = min(valid, key=_simplicity)
    if spread <= NEGLIGIBLE:
        kind = "Compute-bound" if fastest.parts.stall_seconds <= NEGLIGIBLE * fastest.parts.wall_seconds else "No gain"
        return [
            f"{kind}: all strategies are within {NEGLIGIBLE:.0%} of each other, so how {source} is loaded does not "
            f"matter here; stay with {simplest.name}, the simplest."
        ]
    chosen, by_simplicity = simplest, sorted(valid, key=_simplicity)
    # Each is faster than the one before, on average over the same rounds, so none is chosen twice.
    while faster := next((each for each in by_simplicity if _is_faster(each, chosen, ratios)), None):
        chosen = faster
    sentences = [_choice(chosen, next((each for each in valid if each.name == report.reference), None))]
    if chosen is not fastest:
        sentences[0] += f" {_not_faster(fastest, ratios[fastest.name, chosen.name])}"
    if chosen.sameness is not None and chosen.sameness.level != "identical":
        sentences.append(
            f"Its samples are not identical with those of {report.reference}: {chosen.sameness.describe()}."
        )
    if chosen.presaving is not None:
        sentences.append(_cost(chosen, any(each.presaving is None for each in valid)))
    sentences.append(_bound(chosen, report))
    return sentences


def _is_faster(result: StrategyResult, other: StrategyResult, ratios: Mapping[tuple[str, str], Interval]) -> bool:
    """Return True if `result` was shown to be faster than `other` by more than is negligible."""
    if result is other:
        return False
    ratio = ratios[result.name, other.name]
    # With too few rounds for an interval, nothing is recommended: this is only the fastest so far.
    return (ratio.low is None or ratio.outcome() is Outcome.FASTER) and ratio.estimate < 1 - NEGLIGIBLE


def _not_faster(fastest: StrategyResult, ratio: Interval) -> str:
    """Say why a simpler strategy is recommended than `fastest`, whose wall time is `ratio` of its own."""
    if ratio.high is not None and ratio.high >= 1:
        times = f"{ratio.estimate:.2f} times as long ({bounds(ratio)})"
        return f"{fastest.name} takes equally long, as far as this comparison can tell: {times}."
    return f"{fastest.name} has not been shown to be faster by more than {NEGLIGIBLE:.0%}."


def _simplicity(result: StrategyResult) -> tuple[bool, bool, bool, bool, int]:
    """Return a sort key that puts the simplest first.

    That is a loader that the user has already, then no worker processes, no store, no loading ahead, and few bytes.
    """
    strategy = Candidate(result.strategy, settings=tuple(result.settings.items())).kind
    stored = 0 if result.presaving is None else result.presaving.nbytes
    return not result.is_foreign, strategy.uses_processes, strategy.reads_store, strategy.loads_ahead, stored


def _choice(chosen: StrategyResult, reference: StrategyResult | None) -> str:
    wall = seconds(chosen.parts.wall_seconds)
    if reference is None:
        return f"Use {chosen.name}: an epoch takes {wall}."
    if chosen is reference:
        return f"Stay with {chosen.name}: an epoch takes {wall}, and no strategy has been shown to be faster."
    ratio = chosen.ratio
    instead = f"{seconds(reference.parts.wall_seconds)} with {reference.name}"
    text = f"Use {chosen.name}: an epoch takes {wall} instead of {instead}"
    if ratio is None:
        return f"{text}."
    if ratio.low is None:
        return (
            f"A recommendation needs {MIN_ROUNDS} rounds; completed: {ratio.count}. So far {chosen.name} is the "
            f"fastest: an epoch takes {wall} instead of {instead}. Allow more time with --budget."
        )
    share = f"{ratio.estimate:.2f} times as long (95% interval {bounds(ratio)})"
    if not ratio.excludes_one:
        return (
            f"No difference from {reference.name} has been shown: with {chosen.name} an epoch takes {wall} instead of "
            f"{instead}, {share}."
        )
    return f"{text}, {share}."


def _cost(chosen: StrategyResult, is_without_store: bool) -> str:
    """Say what the store of `chosen` costs and, if a strategy without a store was measured, when it pays off."""
    cost = chosen.presaving
    assert cost is not None  # noqa: S101 - for the type checker
    work = "Its preparation" if chosen.stage is None else f"Presaving after {chosen.stage}"
    text = f"{work} takes {seconds(cost.write_seconds)} and {nbytes(cost.nbytes)} once"
    if not is_without_store:
        return f"{text}."
    if cost.break_even_epochs is None:
        return f"{text}, which does not pay off against the fastest strategy without a store."
    epochs = cost.break_even_epochs
    count = "within the first epoch" if epochs <= 1 else f"after {epochs:.1f} epochs"
    return f"{text}, which pays off {count}."


def _bound(result: StrategyResult, report: ReportData) -> str:
    work = INFERENCE if report.settings["compute"] == INFERENCE else TRAINING
    parts = result.parts
    waiting = parts.stall_seconds / parts.wall_seconds
    if waiting <= NEGLIGIBLE:
        return (
            f"With {result.name} {work} waits for data {waiting:.1%} of the time: compute is the limit, and faster "
            "loading would not help."
        )
    if parts.stall_seconds > parts.compute_alone_seconds:
        return f"With {result.name} {work} still waits for data {waiting:.0%} of the time: loading is the limit."
    return f"With {result.name} {work} waits for data {waiting:.0%} of the time."


def make_notes(measured: Measurements) -> list[str]:
    """Return notes on what failed, what was scaled, which settings had no effect and which stores exceed memory."""
    scale = measured.scale
    found = [measured.gave_way] if measured.gave_way else []
    found += [f"{measured.name(each)} failed: {reason}" for each, reason in measured.failed.items()]
    requested, reference = measured.work.candidates[0], measured.compared[0]
    if reference != requested:
        found.append(f"{measured.name(reference)} is the reference instead of {measured.name(requested)}.")
    if measured.end_reason:
        found.append(
            f"The comparison ended after round {measured.rounds}, since the next one failed: {measured.end_reason}"
        )
    if scale.measured < scale.records:
        found.append(
            f"Measured on {scale.measured:,} of {scale.records:,} records, chosen at random. Times are scaled to all "
            "records: the first batches, which are the start-up, count once, and the time of the others grows with "
            "their number."
        )
    for candidate in measured.compared:
        found += _user_loader_notes(measured, candidate)
        found += _split_notes(measured, candidate)
        inert = [each for each in audits_of(measured.samples[candidate]) if each.is_inert]
        found += [f"{measured.name(candidate)}: a setting had no effect: {each.alarm}" for each in inert]
    memory = usable_nbytes()
    for candidate in measured.compared:
        written = measured.written.get(candidate)
        stored = 0 if written is None else presaving_of(written, scale).nbytes
        if stored > memory / 2 and measured.work.settings.cache == "warm":
            found.append(
                f"The store of {measured.name(candidate)} takes {stored / 1e9:,.1f} GB, but this machine has "
                f"{memory / 1e9:,.1f} GB of memory: epochs over the whole source will wait for the disk. Also compare "
                "with --cache cold."
            )
    return found


def _user_loader_notes(measured: Measurements, candidate: Candidate) -> Iterator[str]:
    """Yield notes on a user's loader: what of its epochs was measured, its threads, and what it left behind."""
    if not candidate.is_foreign:
        return
    name, work = measured.name(candidate), measured.work
    batches, tried = work.part_batches[candidate], work.tried[candidate.origin]
    if batches is not None and (tried.epoch_batches is None or batches < tried.epoch_batches):
        one, several = "batch", "batches"
        if tried.epoch_batches is not None:
            one = several = f"of {tried.epoch_batches:,} batches"
        taken = counted(batches, f"{one} of an epoch was", f"{several} of an epoch were")
        reason = (
            "as --epoch-batches says" if work.settings.epoch_batches is not None else "it cannot be given fewer records"
        )
        yield f"{name}: {taken} measured: {reason}."
    slower = _slow_start(measured, candidate)
    if slower > SLOW_START:
        yield (
            f"{name}: its first batches took {slower:.0f} times as long as the others, which counts once. If it loads "
            "all records before them, its time is too low: compare with --check-epoch."
        )
    threads = _threads_set(measured, candidate)
    if threads:
        yield f"{name} set the compute threads to {threads.pop()}; it was given {measured.threads(candidate).compute}."
    check = measured.checks[candidate]
    left = check.left_behind
    if left:
        count = "a process" if len(left) == 1 else f"{len(left)} processes"
        yield f"{name} left {count} running when it was closed, which the comparison ended: {left[0]}"
    if check.printed_lines:
        lines = "a line" if check.printed_lines == 1 else f"{check.printed_lines:,} lines, the first of them"
        yield f"{name} printed to standard output, which takes time and is not shown: {lines}: {check.first_printed}"


def _threads_set(measured: Measurements, candidate: Candidate) -> set[int]:
    """Return the numbers of compute threads that were not those that a user's loader was given."""
    given = measured.threads(candidate).compute
    return {sample.torch_threads for sample in measured.samples[candidate].values()} - {0, given}


def _slow_start(measured: Measurements, candidate: Candidate) -> float:
    """Return how many times as long as the others the first batches took.

    Return 0 if that takes little of the epoch, or is not scaled: a loader that gets all records may load them at once.
    """
    if measured.scale.measured >= measured.scale.records or candidate in measured.work.gets_all:
        return 0.0
    epochs = [each.epoch for each in measured.samples[candidate].values() if each.epoch.batches > each.epoch.start_up]
    if not epochs or statistics.median(each.wall.first / each.wall.total for each in epochs) < SLOW_START_SHARE:
        return 0.0
    return statistics.median(
        (each.wall.first / each.start_up) / (each.wall.rest / (each.batches - each.start_up)) for each in epochs
    )


def _split_notes(measured: Measurements, candidate: Candidate) -> Iterator[str]:
    """Yield a note that names the chosen CPU split and the times of the others; none if no split was tried."""
    tried = {CpuSplit(each.compute_threads, each.loading_threads): each for each in splits_of(measured, candidate)}
    threads = measured.threads(candidate)
    taken = tried.pop(threads, None)
    if taken is None or (candidate.is_foreign and _threads_set(measured, candidate)):
        return
    kind = "worker processes" if candidate.worker_processes else "loading threads"
    runs, fastest = f"{_split(threads)} compute threads + {kind}", "split"
    if candidate.is_foreign:
        runs, fastest = counted(threads.compute, "compute thread", "compute threads"), "number"
    others = ", ".join(f"{_split(split)} {seconds(each.epoch_seconds)}" for split, each in tried.items())
    cpus = measured.work.cpus
    is_shared = threads.compute + threads.loading > cpus
    yield (
        f"{measured.name(candidate)} runs with {runs}{f', which share the CPUs ({cpus})' if is_shared else ''}: the "
        f"fastest {fastest} in short trials, with {seconds(taken.epoch_seconds)} per epoch; others: {others}."
    )


def _split(threads: CpuSplit) -> str:
    return f"{threads.compute} + {threads.loading}" if threads.loading else str(threads.compute)
