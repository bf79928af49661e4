"""What a reader must know beside the figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import psutil

from etl.comparison.candidate import Candidate
from etl.comparison.measured import Measured
from etl.comparison.report import SplitTrial
from etl.comparison.results import audits_of
from etl.comparison.splits import MIN_TRIALS
from etl.comparison.threads import Threads
from etl.comparison.units import seconds


def notes(measured: Measured) -> list[str]:
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
        found += _of_splits(measured, candidate)
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


def splits_of(measured: Measured, candidate: Candidate) -> list[SplitTrial]:
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


def _of_splits(measured: Measured, candidate: Candidate) -> Iterator[str]:
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
