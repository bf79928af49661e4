"""Predictions for elsewhere: a model of an epoch with other CPUs, compute or storage, from measured costs.

A training loop that loads itself waits for every record: for its CPU time, for a slow source and for the disk. Threads
that load ahead share all of that, but no number of threads reads faster than the disk. This is only arithmetic:
`costs.py` takes the costs from the measurements of a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from etl.comparison.judge.prediction import Slowdowns, overlapped_seconds
from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.scenario import WhatIf
from etl.units import counted

# The utilisation for which CPUs are counted, and the most CPUs that are tried.
UTILISATION_WANTED, MAX_CPUS = 0.9, 256
# Factors by which compute was changed in the validation, `python -m benchmarks.studies.what_if`. The disk was not.
COMPUTE_VALIDATED = (0.1, 4.0)
# Share of compute that more threads make faster, if only one number of threads was measured.
PARALLEL_COMPUTE = 0.9
# Loading beside compute is at most this many times slower or faster than loading alone, apart from `Slowdowns`.
MAX_ADJUSTMENT = 1.25
# Two threads on one CPU have half of it each, unless that was measured.
ONE_CPU: Slowdowns = (2.0, 2.0)
# Disks whose speeds differ by at most this share are the same.
SAME_DISK = 0.05
# The adjustment is known if loading that takes 10% longer makes the wall time longer by at least this share.
MIN_EFFECT, FLAT = 0.03, 1e-3


@dataclass(frozen=True)
class LoadingCosts:
    """Measured costs of one strategy. Seconds and bytes are per batch unless another unit is named.

    Attributes
    ----------
    is_ahead : bool
        True if threads or processes load during compute; False if the training loop loads.
    load_seconds : float
        Loading with these threads and nothing else running.
    start_seconds : float
        Time by which the first batch of an epoch takes longer to load than others.
    one_thread_seconds : float
        Loading with one thread.
    contention : float
        Share of loading that does not get faster with more threads: locks, or memory that is not fast enough. Noise can
        make it negative.
    cpu_seconds : float
        CPU time of loading, of all threads together.
    disk_seconds : float
        Time in which the disk was busy; 0 if all files were in the page cache.
    nbytes : float
        Bytes that are read from files, in the page cache or not.
    compute_seconds : dict of int to float
        Compute alone, by number of threads. On a device, the number does not matter.
    is_on_device : bool
        True if compute takes no CPU.
    apart, shared, on_one_cpu : (float, float)
        Factors by which loading and compute slow each other down on the CPUs: if each thread has one of its own, if
        there are more threads than CPUs, and if there is one CPU.
    harness_seconds : float
        Overhead of the measuring loop.
    adjustment : float
        Factor by which loading takes longer in training than alone, apart from `apart` and `shared`.
    """

    batches: float
    cpus: int
    is_ahead: bool
    threads: CpuSplit
    load_seconds: float
    start_seconds: float
    one_thread_seconds: float
    contention: float
    cpu_seconds: float
    disk_seconds: float
    nbytes: float
    compute_seconds: Mapping[int, float]
    is_on_device: bool
    waits_for_steps: bool
    apart: Slowdowns = (1.0, 1.0)
    shared: Slowdowns = (2.0, 2.0)
    on_one_cpu: Slowdowns = ONE_CPU
    harness_seconds: float = 0.0
    adjustment: float = 1.0

    def loading(self, threads: int, cpus: int) -> float:
        """Return the seconds to load a batch with `threads` threads on `cpus` CPUs, with nothing else running."""
        if not self.is_ahead:
            return self.adjustment * self.load_seconds + self.disk_seconds
        contention = self.contention
        if threads > self.threads.loading:
            # If more threads were even faster than proportional, that was noise, which must not be extrapolated.
            contention = max(0.0, contention)
        shared = self.one_thread_seconds * (contention + (1 - contention) / threads)
        # Waiting for the disk is shared by threads, too, until the disk is always busy.
        cpu_bound = self.adjustment * max(shared + self.disk_seconds / threads, self.cpu_seconds / cpus)
        return max(cpu_bound, self.disk_seconds)

    def computing(self, threads: int) -> float:
        """Return the seconds of compute alone with `threads` threads; by Amdahl's law if that was not measured."""
        known = self.compute_seconds
        if self.is_on_device or threads in known:
            return known.get(threads, min(known.values()))
        fewest, most = min(known), max(known)
        parallel = PARALLEL_COMPUTE
        if most > fewest:
            # seconds = one * (1 - parallel + parallel / threads) at both
            slow, fast = known[fewest], known[most]
            divisor = slow * (1 - 1 / most) - fast * (1 - 1 / fewest)
            parallel = min(1.0, max(0.0, (slow - fast) / divisor)) if divisor > 0 else 0.0
        at_fewest = 1 - parallel + parallel / fewest
        return known[fewest] / at_fewest * (1 - parallel + parallel / threads)


@dataclass(frozen=True)
class PredictedEpoch:
    """An epoch as the model has it, with the fastest of the CPU splits that a comparison would try.

    In the stall nothing is computed because the next batch is not ready. Utilisation is compute alone over wall.
    """

    wall_seconds: float
    stall_seconds: float
    accelerator_utilisation: float


def outcome(costs: LoadingCosts, cpus: int | None = None) -> PredictedEpoch:
    """Return the epoch of a strategy on `cpus` CPUs, by default on as many as were measured."""
    cpus = costs.cpus if cpus is None else cpus
    return min((_of_split(costs, each, cpus) for each in _splits(costs, cpus)), key=lambda each: each.wall_seconds)


def changed(costs: LoadingCosts, scenario: WhatIf) -> LoadingCosts:
    """Return the costs of a strategy with the compute and the storage of `scenario`; its CPUs are another matter."""
    if scenario.compute_seconds is not None:
        if costs.is_ahead and not costs.is_on_device:  # then all CPUs are free to load, and compute disturbs nothing
            contention = max(0.0, costs.contention)
            costs = replace(costs, threads=CpuSplit(1, costs.cpus), contention=contention, adjustment=1.0)
        costs = replace(costs, compute_seconds={1: scenario.compute_seconds}, is_on_device=True)
    if scenario.compute_factor is not None:
        factor = scenario.compute_factor
        costs = replace(costs, compute_seconds={key: factor * each for key, each in costs.compute_seconds.items()})
    if scenario.disk_nbytes_per_second is not None:
        costs = replace(costs, disk_seconds=costs.nbytes / scenario.disk_nbytes_per_second)
    if scenario.cached_share is not None:
        costs = replace(costs, disk_seconds=(1 - scenario.cached_share) * costs.disk_seconds)
    return costs


def contention_of(threads: int, seconds: float, one_thread_seconds: float) -> float:
    """Return the share of loading that does not get faster with more threads."""
    return (threads * seconds / one_thread_seconds - 1) / (threads - 1) if threads > 1 else 0.0


def fewest_cpus(costs: LoadingCosts) -> int | None:
    """Return the fewest CPUs for a utilisation of `UTILISATION_WANTED`; None if no number is enough."""
    utilisations = ((cpus, outcome(costs, cpus).accelerator_utilisation) for cpus in range(1, MAX_CPUS + 1))
    return next((cpus for cpus, utilisation in utilisations if utilisation >= UTILISATION_WANTED), None)


def why_never_used(costs: LoadingCosts) -> str:
    """Return what keeps the utilisation below `UTILISATION_WANTED` with any number of CPUs."""
    if costs.disk_seconds > 0 and fewest_cpus(replace(costs, disk_seconds=0.0)) is not None:
        return "the disk is too slow"
    if not costs.is_ahead:
        return "the training loop loads in one thread"
    if not costs.is_on_device:
        return "compute gets faster with more CPUs, too"
    if costs.contention > 1:
        return "loading is slower with more threads"
    if costs.contention > 0:
        return f"{costs.contention:.0%} of loading gets no faster with more threads"
    return f"{MAX_CPUS} CPUs are too few"


def adjusted(costs: LoadingCosts, wall_seconds: float) -> LoadingCosts:
    """Return costs with which the model gives the measured wall time of an epoch, if that depends on loading."""

    def wall(adjustment: float) -> float:
        return _of_split(replace(costs, adjustment=adjustment), costs.threads, costs.cpus).wall_seconds

    faster, slower = wall(1.0) - wall(0.9), wall(1.1) - wall(1.0)
    if slower < MIN_EFFECT * wall(1.0) or faster < slower / 2:
        return costs  # compute decides, or both do: what they lose where they meet is not a matter of loading
    low, high = 1 / MAX_ADJUSTMENT, MAX_ADJUSTMENT
    # Once compute decides, faster loading changes nothing: stop there.
    target = max(wall_seconds, wall(low) * (1 + FLAT))
    for _ in range(30):  # halvings
        middle = math.sqrt(low * high)
        low, high = (middle, high) if wall(middle) < target else (low, middle)
    return replace(costs, adjustment=math.sqrt(low * high))


def unknown_reason(costs: LoadingCosts, cpus: int | None) -> str:
    """Return why nothing is known of a strategy on `cpus` CPUs; nothing if something is."""
    if costs.is_on_device or cpus is None or cpus <= costs.cpus or len(costs.compute_seconds) > 1:
        return ""
    return f"compute with more than {counted(costs.threads.compute, 'thread', 'threads')} was not measured"


def extrapolated(costs: LoadingCosts, scenario: WhatIf) -> list[str]:
    """Return how far a scenario is beyond what was measured and validated: one reason each, none if it is not."""
    reasons = []
    if scenario.cpus is not None and scenario.cpus > costs.cpus:
        reasons.append(f"more CPUs than the {costs.cpus} of this comparison")
    after = changed(costs, scenario)
    before = costs.computing(costs.threads.compute)
    low, high = COMPUTE_VALIDATED
    if not low * (1 - 1e-9) <= after.computing(costs.threads.compute) / before <= high * (1 + 1e-9):
        reasons.append(f"compute beyond {low:g} to {high:g} times the measured {1e3 * before:.3g} ms")
    if after.disk_seconds > 0 and costs.disk_seconds == 0:
        reasons.append("a disk, which this comparison did not read")
    elif after.disk_seconds > 0 and scenario.disk_nbytes_per_second is not None:
        measured = costs.nbytes / costs.disk_seconds
        if not math.isclose(scenario.disk_nbytes_per_second, measured, rel_tol=SAME_DISK):
            reasons.append(f"a disk of another speed than the measured {measured / 1e6:,.0f} MB/s")
    return reasons


def _splits(costs: LoadingCosts, cpus: int) -> list[CpuSplit]:
    """Return the CPU splits that a comparison tries on `cpus` CPUs; on as many as were measured, the measured one.

    See `Workload.splits`.
    """
    if cpus == costs.cpus:
        return [costs.threads]
    if not costs.is_ahead:
        return [CpuSplit(threads, 0) for threads in {1, cpus}]
    if costs.is_on_device:
        return [CpuSplit(1, cpus)]
    return CpuSplit.usual(cpus)


def _of_split(costs: LoadingCosts, split: CpuSplit, cpus: int) -> PredictedEpoch:
    load, compute = costs.loading(max(1, split.loading), cpus), costs.computing(split.compute)
    rest = costs.batches - 1
    if costs.is_ahead or (costs.is_on_device and not costs.waits_for_steps):
        factors = _slowdowns(costs, split, cpus)
        both = overlapped_seconds(load, compute, *factors)
        slow_load, slow_compute = load * factors[0], compute * factors[1]
        # Compute that takes longer than loading takes all of the time.
        stall = load + rest * (both - slow_compute if slow_load > slow_compute else 0.0)
        wall = load + compute + rest * both
    else:
        stall = costs.batches * load
        wall = stall + costs.batches * compute
    wall += costs.start_seconds + costs.batches * costs.harness_seconds
    return PredictedEpoch(wall, stall + costs.start_seconds, costs.batches * compute / wall)


def _slowdowns(costs: LoadingCosts, split: CpuSplit, cpus: int) -> Slowdowns:
    """Return the factors by which loading and compute slow each other down with a split of `cpus` CPUs."""
    if costs.is_on_device:
        return 1.0, 1.0
    if cpus == 1:
        return costs.on_one_cpu
    return costs.apart if split.compute + split.loading <= cpus else costs.shared
