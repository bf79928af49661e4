"""The samples of all ranks that train together, joined to one, and what its straggler is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from .clock import Split
from .noise import quickest
from .sample import RankSample, Sample, StepTimes

# Ranks wait for each other if in this share of the steps none is done before all have begun.
MIN_SHARED_STEPS = 0.99
AnySample = TypeVar("AnySample", bound=Sample)


class RanksDifferError(ValueError):
    """The ranks do not divide the records of an epoch as they must. The message says how."""


def join_samples(samples: Sequence[AnySample], are_together: bool | None = None) -> AnySample:
    """Return one sample of all ranks: their wall time is that of the slowest, and its parts are those of the straggler.

    The straggler is the rank that waits least for others or, if ranks do not wait for each other, the slowest. From its
    last step until the last rank has ended, it waits: that counts as compute, like all of its waiting for others.

    Parameters
    ----------
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
    alone = [each.etl_alone for each in samples if each.etl_alone is not None]
    first = straggler.epoch.start_up
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
        cpu_seconds=sum(each.cpu_seconds for each in samples),
        read_nbytes=sum(each.read_nbytes for each in samples),
        other_processes=_share_of_others(straggler, samples),
        throttled=max(each.throttled for each in samples),
        # Ranks take their probes at the same time, so the quickest of them was disturbed least by the others.
        probes=[quickest(each) for each in zip(*(sample.probes for sample in samples), strict=True)],
        affinity=sorted({cpu for each in samples for cpu in each.affinity}),
        torch_threads=max(each.torch_threads for each in samples),
        misplaced_pages=sum(each.misplaced_pages for each in samples),
        unreported_files=max(each.unreported_files for each in samples),
        steps=None,
        ranks=[
            RankSample(
                epoch=each.epoch,
                first_batch=each.first_stall,
                waits=Split(float(waits[rank, :first].sum()), float(waits[rank, first:].sum()))
                if are_together
                else None,
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


def _share_of_others(sample: Sample, ranks: Sequence[Sample]) -> float:
    """Return the share of its CPUs' time that other processes used, without the other ranks that share them."""
    beside = [each.cpu_seconds for each in ranks if each is not sample and set(each.affinity) & set(sample.affinity)]
    return max(0.0, sample.other_processes - sum(beside) / (sample.epoch.wall.total * len(sample.affinity)))
