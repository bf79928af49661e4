"""The rules of a fair comparison: a check for each, and the evidence that the report shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from etl.comparison.judge.noise import THROTTLED_LIMIT, throttled_share
from etl.comparison.judge.report import Check, Parts
from etl.comparison.judge.sameness import Sameness, compare_epochs
from etl.comparison.request.answers import CheckedEpoch, LoadingSample, WrittenStore
from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.settings import Settings
from etl.measuring.noise import MAX_UNEXPLAINED
from etl.measuring.sample import Sample
from etl.measuring.statistics import MIN_ROUNDS
from etl.training.compute import INFERENCE
from etl.units import counted

RULES = {
    "samples": "Same samples: every strategy loads the same records, as alike as the report says",
    "compute": "Same compute: the same model from the same weights ends with the same loss",
    "resources": "Same resources: the same CPUs, however a strategy splits them, and the same memory for all",
    "cache": "Same cache state: files were in the page cache, or out of it, as requested",
    "cost": "Everything is paid for: writing and keeping a store is measured and reported",
    "noise": "Noise is handled: balanced rounds, ratios paired within them, with intervals",
    "loaded": "Loaded means readable at memory speed: every page of a batch is read while loading is timed",
    "sum": "The sum adds up: wall time is compute, interference, stall and harness",
}
# Relative. A GPU adds numbers in a different order each time, and so may another version of torch or another number of
# threads, so that losses differ slightly.
DEVICE_SCORE_TOLERANCE = 1e-2
# A strategy may seem to use more than its CPUs by this share: CPU time is counted in ticks, and is not read at the same
# moment as wall time.
CPU_TOLERANCE = 0.05


@dataclass(frozen=True)
class Evidence:
    """Measurements of one candidate that the rules look at: its untimed epoch, and its timed epochs, by round.

    Attributes
    ----------
    shares_python : bool
        True if it ran in the Python of the comparison.
    sameness : Sameness
        How far its records are those of the reference.
    writing : WrittenStore or None
        The cost of its store; None if it reads none.
    has_unknown_files : bool
        True if it may have read files whose cache state was not checked.
    """

    is_presaved: bool
    is_foreign: bool
    shares_python: bool
    sameness: Sameness
    threads: CpuSplit
    check: CheckedEpoch
    samples: Mapping[int, Sample]
    parts: Parts
    writing: WrittenStore | None
    has_unknown_files: bool = False


@dataclass(frozen=True)
class FairnessConditions:
    """Conditions that are the same for all candidates.

    Attributes
    ----------
    affinity : sequence of int
        CPUs that every process was bound to.
    randomness : str or None
        Sentence that says how records differ from one reading to the next; None if they do not.
    retaken : int
        Samples that were taken again because they had been disturbed.
    """

    settings: Settings
    affinity: Sequence[int]
    memory_nbytes: int
    rounds: int
    randomness: str | None = None
    retaken: int = 0


def check_rules(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> list[Check]:
    """Check every rule, in order, and return the results.

    `held` is None for a rule that was switched off, or that could not be checked for all strategies.
    """
    checkers = {
        "samples": _samples,
        "compute": _compute,
        "resources": _resources,
        "cache": _cache,
        "cost": _cost,
        "noise": _noise,
        "loaded": _loaded,
        "sum": _sum,
    }
    checks = []
    for rule, title in RULES.items():
        if rule in conditions.settings.unchecked:
            checks.append(Check(rule, title, None, "switched off with --no-check"))
            continue
        found = checkers[rule](evidence, conditions)
        held = False if found.broken_by else found.held
        checks.append(Check(rule, title, held, found.evidence, found.broken_by))
    return checks


def misplaced_pages(samples: Mapping[int, Sample | LoadingSample]) -> int:
    """Return how many pages of the files were not in the requested cache state, over all samples."""
    return sum(sample.misplaced_pages for sample in samples.values())


class _Found(NamedTuple):
    """Evidence on a rule, and why strategies broke it; `held` is that of its `Check` if none did."""

    evidence: str
    broken_by: dict[str, str]
    held: bool | None = True


def _samples(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:
    own, first = _first_own(evidence), next(iter(evidence.values()))
    broken = {}
    batch_size, ranks, cpus = conditions.settings.batch_size, conditions.settings.ranks, len(conditions.affinity)
    shuffled = any(each.sameness.is_shuffled for each in evidence.values())
    for name, each in evidence.items():
        content = each.check.content
        possible = _possible_counts(each, conditions)
        counts = {sample.epoch.samples for sample in each.samples.values()} - possible
        incomplete = sum(size < batch_size for size in content.batch_sizes)
        if each.sameness.level is None:
            broken[name] = each.sameness.reason
        elif (
            not each.is_foreign
            and conditions.randomness is None
            and content.digests != evidence[own].check.content.digests
        ):
            broken[name] = compare_epochs(content, evidence[own].check.content, own).reason
        elif max(content.batch_sizes) > batch_size:
            broken[name] = f"it has batches of {max(content.batch_sizes):,} records, not {batch_size:,}"
        elif incomplete > max(1, ranks, min(max(cpus, each.check.workers), len(content.batch_sizes) // 2)):
            broken[name] = (
                f"{incomplete:,} of its {len(content.batch_sizes):,} batches have fewer than {batch_size:,} "
                "records; the last of each worker may"
            )
        elif counts:
            broken[name] = f"{counted(counts.pop(), 'sample', 'samples')} in a timed epoch instead of {max(possible):,}"
        elif shuffled and each.sameness.is_shuffled is False:
            broken[name] = f"it does not shuffle, and other strategies do: {each.sameness.describe_order()}"
    batches = counted(len(first.check.content.digests), "batch", "batches")
    seen = f"compared 128-bit digests of the shape, dtype and bytes of {batches}, in an untimed epoch before the rounds"
    if conditions.randomness:
        seen += f"; {conditions.randomness}"
    levels = [f"{name} {each.sameness.describe()}" for name, each in evidence.items() if each.is_foreign]
    return _Found(f"{seen}; {', '.join(levels)}" if levels else seen, broken)


def _possible_counts(evidence: Evidence, conditions: FairnessConditions) -> set[int]:
    """Return how many records as many batches may have as were timed; incomplete ones may come in any order."""
    batches = conditions.settings.ranks * max(sample.epoch.batches for sample in evidence.samples.values())
    sizes = sorted(evidence.check.content.batch_sizes)
    if batches >= len(sizes):
        return {evidence.check.content.samples}
    return set(range(sum(sizes[:batches]), sum(sizes[len(sizes) - batches :]) + 1))


def _first_own(evidence: Mapping[str, Evidence]) -> str:
    """Return the name of the first strategy of this package, with which the others of it must be identical.

    Return that of the reference if there is none.
    """
    return next((name for name, each in evidence.items() if not each.is_foreign), next(iter(evidence)))


def _compute(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:
    simulated = conditions.settings.simulated_seconds
    if simulated is not None:
        each_step = f"a simulated device takes {simulated * 1e3:g} ms per batch for every strategy"
        return _Found(f"{each_step}; {_steps(conditions)}", {})
    reference, first = next(iter(evidence.items()))
    own = _first_own(evidence)
    broken = {}
    infers = conditions.settings.compute == INFERENCE
    score = "mean square of the outputs" if infers else "loss"
    on_device = any(sample.device != "cpu" for each in evidence.values() for sample in each.samples.values())
    for name, each in evidence.items():
        compared_with = reference if each.is_foreign else own
        other = evidence[compared_with]
        adds_alike = not on_device and each.shares_python and other.shares_python
        adds_alike = adds_alike and each.check.torch_threads == other.check.torch_threads
        tolerance = 0.0 if adds_alike else DEVICE_SCORE_TOLERANCE
        if each.check.weights != first.check.weights:
            broken[name] = f"its initial weights are not those of {reference}"
        if each.check.content.digests != other.check.content.digests:
            continue  # other samples, another score
        expected = other.check.score
        if not _same_score(each.check.score, expected, tolerance):
            broken[name] = f"its {score} is {each.check.score}, but the {score} of {compared_with} is {expected}"
    exactly = "bit for bit"
    if on_device:
        exactly = f"within {DEVICE_SCORE_TOLERANCE:.0%}; {_steps(conditions)}"
    elif not all(each.shares_python for each in evidence.values()):
        exactly = f"bit for bit in one Python, within {DEVICE_SCORE_TOLERANCE:.0%} of that in another"
    elif len({each.check.torch_threads for each in evidence.values()}) > 1:
        exactly = f"bit for bit with as many threads, within {DEVICE_SCORE_TOLERANCE:.0%} with others"
    if first.check.score is None:
        what = "the model" if infers else "the user's step"
        missing = "its outputs are no tensors" if infers else "it returns no loss"
        return _Found(f"every strategy made {what} with the same seed; {missing}; {_steps(conditions)}", broken)
    weights = "" if first.check.weights is None else "digests of the initial weights, and "
    return _Found(
        f"compared {weights}the {score} after the same steps ({first.check.score:.6g} for {reference}) of all "
        f"strategies whose samples are identical, {exactly}",
        broken,
    )


def _steps(conditions: FairnessConditions) -> str:
    if conditions.settings.waits_for_steps:
        return "the training loop waited for each step, as requested"
    return "at most one step was in flight while the next batch was loaded"


def _same_score(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    # Without normalised features the loss may diverge to inf or NaN, for every strategy alike.
    return math.isclose(one, other, rel_tol=tolerance) or (math.isnan(one) and math.isnan(other))


def _resources(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:
    cpus = len(conditions.affinity)
    broken = {}
    busiest = 0.0
    for name, each in evidence.items():
        for number, sample in each.samples.items():
            wall = sample.epoch.wall.total
            busy = sample.cpu_seconds / wall
            busiest = max(busiest, busy)
            if sample.affinity != list(conditions.affinity):
                broken[name] = f"it ran on CPUs {sample.affinity} in round {number}"
            elif _has_other_threads(each, sample, conditions):
                threads = counted(sample.torch_threads, "thread", "threads")
                broken[name] = f"it computed with {threads} in round {number}, not {each.threads.compute}"
            elif busy > cpus * (1 + CPU_TOLERANCE) + 0.1 / wall:
                broken[name] = f"it used {busy:.2f} CPUs in round {number}"
        if each.check.peak_memory > conditions.memory_nbytes:
            broken[name] = f"it used {each.check.peak_memory / 1e6:,.0f} MB"
    peak = max(each.check.peak_memory for each in evidence.values())
    listed = ", ".join(map(str, conditions.affinity))
    ranks = conditions.settings.ranks
    bound = "all were bound" if ranks == 1 else f"the {ranks} ranks of each were together bound"
    seen = (
        f"{bound} to CPUs {listed} for loading and compute together; the busiest strategy used {busiest:.2f} "
        f"CPUs, and the largest {peak / 1e6:,.0f} of {conditions.memory_nbytes / 1e6:,.0f} MB of memory"
    )
    return _Found(seen, broken)


def _has_other_threads(evidence: Evidence, sample: Sample, conditions: FairnessConditions) -> bool:
    """Return True if a strategy of this package computed with other threads than it was given.

    How a user's loader splits its CPUs is its own affair, and a user's step or model may set how many threads compute.
    """
    settings = conditions.settings
    others = (settings.simulated_seconds, settings.step, settings.model)
    if evidence.is_foreign or any(each is not None for each in others):
        return False
    return sample.torch_threads != evidence.threads.compute


def _cache(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:
    wanted, how = "in", "sample its files were read"
    if conditions.settings.cache == "cold":
        wanted, how = "out of", "epoch its files were dropped with posix_fadvise"
    broken = {}
    for name, each in evidence.items():
        misplaced = misplaced_pages(each.samples)
        if misplaced:
            pages = counted(misplaced, "page of its files was", "pages of its files were")
            broken[name] = f"{pages} not {wanted} the page cache"
    seen = f"{conditions.settings.cache}: before each {how}, and every page was checked with mincore"
    unreported = max(sample.unreported_files for each in evidence.values() for sample in each.samples.values())
    if unreported:
        files = counted(unreported, "file that belongs", "files that belong")
        seen += f", which does not report on {files} to another user"
    title = conditions.settings.title
    unknown = " and ".join(name for name, each in evidence.items() if each.has_unknown_files)
    if unknown and conditions.settings.has_unknown_files:
        seen += f"; the files that {title} reads are unknown, and were neither read nor checked"
    elif unknown:
        seen += f"; the files of {title}, all of which {unknown} may read, are too many"
    if any(each.is_foreign for each in evidence.values()):
        seen += "; copies that a loader keeps outside the source and its own folder cannot be seen"
    return _Found(seen, broken, None if unknown else True)


def _cost(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:  # noqa: ARG001
    broken = {
        name: "the cost of writing its store was not measured"
        for name, each in evidence.items()
        if each.is_presaved and each.writing is None
    }
    stores = [each.writing for each in evidence.values() if each.writing is not None]
    seen = "no strategy needs a store or prepares anything"
    if stores or broken:
        strategies = counted(len(stores), "strategy", "strategies")
        seen = (
            f"this comparison wrote the stores and prepared files of {strategies}; the tables show seconds and bytes "
            "of each, and when it pays off"
        )
    starts = [
        f"{name} took {each.check.make_seconds:.3g} s to make" for name, each in evidence.items() if each.is_foreign
    ]
    return _Found("; ".join([seen, *starts]), broken)


def _noise(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:
    fewest = min(len(each.samples) for each in evidence.values())
    seen = (
        f"rounds: {conditions.rounds}, in balanced order, each in a new server with a newly randomized memory layout; "
        f"each strategy was measured in at least {fewest} of them, always in a fresh process"
    )
    if conditions.retaken:
        seen += f"; samples that were taken again: {conditions.retaken}"
    throttled = throttled_share([sample.throttled for sample in each.samples.values()] for each in evidence.values())
    if throttled > THROTTLED_LIMIT:
        share = f"{throttled:.0%} of its periods"
        return _Found(f"{seen}; a CPU quota was used up in {share} (cpu.stat), so no difference is claimed", {}, False)
    if conditions.rounds < MIN_ROUNDS:
        return _Found(f"{seen}; an interval needs {MIN_ROUNDS} rounds, so no difference is claimed", {}, False)
    return _Found(
        f"{seen}; intervals that hold for all ratios together in 95% of comparisons (max-t over sign flips of rounds)",
        {},
    )


def _loaded(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:  # noqa: ARG001
    broken = {}
    for name, each in evidence.items():
        if each.check.pages_absent:
            absent = counted(each.check.pages_absent, "page of its batches was", "pages of its batches were")
            broken[name] = f"{absent} not in memory when compute began"
    pages = next(iter(evidence.values())).check.pages_touched
    seen = (
        f"one byte of each of {pages:,} pages per epoch was read while loading was timed; in the untimed epoch, each "
        "page was then checked with mincore"
    )
    unread = [f"{name}: {each.check.unread}" for name, each in evidence.items() if each.check.unread]
    return _Found("; ".join([seen, *unread]), broken)


def _sum(evidence: Mapping[str, Evidence], conditions: FairnessConditions) -> _Found:  # noqa: ARG001
    shares = {name: each.parts.unexplained_seconds / each.parts.wall_seconds for name, each in evidence.items()}
    broken = {
        name: f"{share:.2%} of its wall time is unexplained"
        for name, share in shares.items()
        if abs(share) > MAX_UNEXPLAINED
    }
    return _Found(f"at most {max(map(abs, shares.values())):.2%} of a strategy's wall time is unexplained", broken)
