"""Seconds of an epoch in which loading and compute overlap, from the profile of the raw pipeline."""

from __future__ import annotations

from etl.comparison.request.answers import PipelineProfile
from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.settings import Settings

# Slowdown of loading during compute, and of compute during loading, as factors.
Slowdowns = tuple[float, float]


def slowdowns(settings: Settings, profile: PipelineProfile, threads: CpuSplit) -> Slowdowns | None:
    """Return the factors by which loading and compute slow each other down; None if they alternate."""
    split = profile.split(threads)
    if split is not None:
        return split.loading_slowdown, split.compute_slowdown
    # Even a training loop that loads itself overlaps with a device: it loads while one step is in flight.
    return (1.0, 1.0) if profile.device != "cpu" and not settings.waits_for_steps else None


def wall_seconds(batches: float, load: float, compute: float, factors: Slowdowns | None) -> float:
    """Return the seconds of an epoch, from those per batch of loading alone and of compute alone.

    The factors are None if loading and compute alternate.
    """
    if factors is None:
        return batches * (load + compute)
    both = overlapped_seconds(load, compute, *factors)
    return load + compute + (batches - 1) * both


def overlapped_seconds(load: float, compute: float, loading_slowdown: float, compute_slowdown: float) -> float:
    """Return the seconds per batch, from those of each alone, if the next is loaded while this one is computed on."""
    slow_load, slow_compute = load * loading_slowdown, compute * compute_slowdown
    if slow_load >= slow_compute:
        # During compute, loading progresses by slow_compute / loading_slowdown.
        return load + slow_compute * (1 - 1 / loading_slowdown)
    return compute + slow_load * (1 - 1 / compute_slowdown)


def stage_seconds(profile: PipelineProfile) -> float:
    """Return the seconds per record of all stages, in one thread."""
    return float(sum(stage.seconds_per_record for stage in profile.stages))
