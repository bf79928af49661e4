"""The measurements of all ranks of a strategy, joined to one, and what its straggler is."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from etl.comparison.sameness import EpochContent, Signatures
from etl.comparison.samples import CheckedEpoch, LoadingSample, RankSample, Sample, StepTimes
from etl.measuring.arrays import merge_layouts
from etl.measuring.clock import Split

# Ranks wait for each other if in this share of the steps none is done before all have begun.
MIN_SHARED_STEPS = 0.99


class RanksDifferError(ValueError):
    """The ranks do not divide the records of an epoch as they must. The message says how."""


def join_checks(checks: Sequence[CheckedEpoch]) -> CheckedEpoch:
    """Return one check of the epochs of all ranks: what they load together, rank after rank.

    Memory that ranks share counts once. The score is the mean of their losses.

    Raises
    ------
    RanksDifferError
        If they have different numbers of batches, or the same records.
    """
    contents = [each.content for each in checks]
    _check_division(contents)
    scores = [each.score for each in checks if each.score is not None]
    shuffles = [each.reshuffles for each in checks]
    device_memory = [each.peak_device_memory for each in checks]
    return replace(
        checks[0],
        content=_join_contents(contents),
        reshuffles=None if None in shuffles else all(shuffles),
        score=sum(scores) / len(scores) if len(scores) == len(checks) else None,
        weights=_only([each.weights for each in checks]),
        pages_touched=sum(each.pages_touched for each in checks),
        pages_absent=sum(each.pages_absent for each in checks),
        unread=next((each.unread for each in checks if each.unread), ""),
        peak_memory=sum(each.peak_memory for each in checks) - _counted_again(checks),
        left_behind=[name for each in checks for name in each.left_behind],
        printed_lines=sum(each.printed_lines for each in checks),
        first_printed=next((each.first_printed for each in checks if each.first_printed), ""),
        mapped={},
        peak_memory_of_ranks=[each.peak_memory for each in checks],
        peak_device_memory=None if None in device_memory else sum(filter(None, device_memory)),
        make_seconds=max(each.make_seconds for each in checks),
        epoch_waits=[max(waits) for waits in zip(*(each.epoch_waits for each in checks), strict=True)],
    )


def _check_division(contents: Sequence[EpochContent]) -> None:
    batches = [len(each.digests) for each in contents]
    if len(set(batches)) > 1:
        told = ", ".join(f"rank {rank}: {count:,}" for rank, count in enumerate(batches))
        raise RanksDifferError(
            f"its ranks have different numbers of batches ({told}), so that one would wait for the others for ever"
        )
    records = [Counter(each.records) for each in contents]
    if all(each == records[0] for each in records[1:]):
        raise RanksDifferError(
            f"each of its ranks loads the same {contents[0].samples:,} records: divide them by `rank` and "
            "`world_size` of the task"
        )


def _join_contents(contents: Sequence[EpochContent]) -> EpochContent:
    paths = [each.signatures for each in contents]
    path = None
    if all(each is not None for each in paths):
        signatures = [Signatures.load(str(each)) for each in paths]
        path = str(Path(str(paths[0])).with_suffix(".ranks.npz"))
        labels = [each.labels for each in signatures if each.labels is not None]
        Signatures(
            np.concatenate([each.values for each in signatures]),
            np.concatenate(labels) if len(labels) == len(signatures) else None,
        ).save(path)
    return EpochContent(
        digests=[digest for each in contents for digest in each.digests],
        records=[digest for each in contents for digest in each.records],
        layouts=reduce(merge_layouts, [each.layouts for each in contents]),
        batch_sizes=[size for each in contents for size in each.batch_sizes],
        signatures=path,
    )


def _only(weights: Sequence[str | None]) -> str | None:
    """Return the digest of the weights that all ranks begin with; all digests if they differ."""
    known = sorted({each for each in weights if each is not None})
    return ", ".join(known) if known else weights[0]


def _counted_again(checks: Sequence[CheckedEpoch]) -> int:
    """Return the bytes of mapped files that several ranks have counted, less those of the one that maps most."""
    found = defaultdict(list)
    for each in checks:
        for path, nbytes in each.mapped.items():
            found[path].append(nbytes)
    return sum(sum(counted) - max(counted) for counted in found.values())


def join_loads(loads: Sequence[LoadingSample]) -> LoadingSample:
    """Return one sample of loading alone: that of the slowest rank."""
    slowest = max(loads, key=lambda each: each.etl_alone.total)
    return replace(slowest, misplaced_pages=sum(each.misplaced_pages for each in loads))


def join_samples(samples: Sequence[Sample], are_together: bool | None = None) -> Sample:
    """Return one sample of all ranks: their wall time is that of the slowest, and its parts are those of the straggler.

    The straggler is the rank that waits least for others or, if ranks do not wait for each other, the slowest. From its
    last step until the last rank has ended, it waits: that counts as compute, like all of its waiting for others.

    Parameters
    ----------
    samples : sequence of Sample
        The sample of each rank.
    are_together : bool, optional
        True if ranks wait for each other in every step. If that is unknown, it is seen from the times of the steps.

    Raises
    ------
    RanksDifferError
        If the ranks took different numbers of steps.
    """
    steps = [each.steps or StepTimes([], []) for each in samples]
    counts = [len(each.began) for each in steps]
    if len(set(counts)) > 1:
        raise RanksDifferError(f"its ranks took different numbers of steps: {', '.join(map(str, counts))}")
    began, done = np.array([each.began for each in steps]), np.array([each.done for each in steps])
    latest = began.max(axis=0)
    if are_together is None:
        are_together = _end_together(began, done)
    waits = np.minimum(latest, done) - began
    last = np.bincount(began.argmax(axis=0), minlength=len(samples))
    walls = np.array([each.epoch.wall.total for each in samples])
    slowest = int(np.argmin(waits.sum(axis=1)) if are_together else np.argmax(walls))
    straggler = samples[slowest]
    cpu_seconds = [each.cpu_seconds for each in samples]
    alone = [each.etl_alone for each in samples if each.etl_alone is not None]
    epoch, at_end = straggler.epoch, float(walls.max() - walls[slowest])
    return replace(
        straggler,
        epoch=replace(
            epoch,
            samples=sum(each.epoch.samples for each in samples),
            wall=replace(epoch.wall, rest=epoch.wall.rest + at_end),
            compute=replace(epoch.compute, rest=epoch.compute.rest + at_end),
        ),
        etl_alone=max(alone, key=lambda each: each.total) if alone else None,
        cpu_seconds=sum(cpu_seconds),
        read_nbytes=sum(each.read_nbytes for each in samples),
        other_processes=_share_of_others(straggler, sum(cpu_seconds) - straggler.cpu_seconds),
        throttled=max(each.throttled for each in samples),
        affinity=sorted({cpu for each in samples for cpu in each.affinity}),
        torch_threads=max(each.torch_threads for each in samples),
        misplaced_pages=sum(each.misplaced_pages for each in samples),
        unreported_files=max(each.unreported_files for each in samples),
        steps=None,
        ranks=[
            RankSample(
                epoch=each.epoch,
                compute_alone=each.compute_alone,
                waits=Split(float(waits[rank, 0]), float(waits[rank, 1:].sum())) if are_together else None,
                last=int(last[rank]),
                cpus=each.affinity,
            )
            for rank, each in enumerate(samples)
        ],
    )


def _end_together(began: np.ndarray, done: np.ndarray) -> bool:
    """Return whether ranks wait for each other: all begin a step before one ends it, and they end closer together.

    Parameters
    ----------
    began, done : float64 arrays of shape (ranks, steps)
        When each rank began and ended each step.
    """
    have_begun = np.mean(began.max(axis=0) <= done.min(axis=0)) >= MIN_SHARED_STEPS
    return bool(have_begun and np.ptp(done, axis=0).mean() < np.ptp(began, axis=0).mean())


def _share_of_others(sample: Sample, seconds: float) -> float:
    """Return the share of CPU time that other processes used, without `seconds` of the other ranks."""
    return max(0.0, sample.other_processes - seconds / (sample.epoch.wall.total * (os.cpu_count() or 1)))
