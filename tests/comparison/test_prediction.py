"""The overlap of loading and compute agrees with a small simulation."""

from __future__ import annotations

import pytest

from etl.comparison.judge.prediction import overlapped_seconds

STEPS = 20_000


def simulate(load: float, compute: float, loading_slowdown: float, compute_slowdown: float) -> float:
    """Simulate two workers in small steps of time, each slower while the other is running."""
    step = (load + compute) / STEPS
    now = 0.0
    while load > 0 or compute > 0:
        both = load > 0 and compute > 0
        if load > 0:
            load -= step / (loading_slowdown if both else 1)
        if compute > 0:
            compute -= step / (compute_slowdown if both else 1)
        now += step
    return now


@pytest.mark.parametrize("load", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("compute", [0.5, 1.0])
@pytest.mark.parametrize(("loading_slowdown", "compute_slowdown"), [(1, 1), (2, 1), (1, 2), (1.3, 1.6), (2, 2)])
def test_side_by_side_is_what_two_workers_take_that_slow_each_other_down(
    load: float, compute: float, loading_slowdown: float, compute_slowdown: float
) -> None:
    simulated = simulate(load, compute, loading_slowdown, compute_slowdown)
    predicted = overlapped_seconds(load, compute, loading_slowdown, compute_slowdown)
    assert predicted == pytest.approx(simulated, rel=1e-3)
