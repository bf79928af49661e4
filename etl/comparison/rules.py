"""The eight rules of a fair comparison, each checked, with what was seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etl.comparison.report import Check, Parts
from etl.comparison.samples import Checked, Loads, Sample, Written
from etl.comparison.threads import Threads
from etl.measuring.statistics import MIN_ROUNDS

RULES = {
    "samples": "Same samples: every strategy loads the same batches in the same order",
    "compute": "Same compute: the same model from the same weights ends with the same loss",
    "resources": "Same resources: the same CPUs, however a strategy splits them, and the same memory for all",
    "cache": "Same cache state: files were in the page cache, or out of it, as was asked for",
    "cost": "Everything is paid for: writing and keeping a store is measured and reported",
    "noise": "Noise is handled: shuffled rounds, ratios paired within them, with intervals",
    "loaded": "Loaded means readable at memory speed: every page of a batch is read while loading is timed",
    "sum": "The sum adds up: wall time is compute, interference, stall and harness",
}
# A GPU adds in another order each time.
DEVICE_SCORE_TOLERANCE = 1e-2
UNEXPLAINED_TOLERANCE = 0.01
# The clock of CPU time counts in ticks, and the two are not read at the same moment.
CPU_TOLERANCE = 0.05


@dataclass(frozen=True)
class Evidence:
    """What was seen of one candidate: what `measure.check` and `measure.measure` returned, the threads it was to have,
    and its parts. `writing` is what `writing.write` returned, None for a candidate without a store.
    """

    is_presaved: bool
    threads: Threads
    check: Checked
    samples: Mapping[int, Sample]
    parts: Parts
    writing: Written | None


@dataclass(frozen=True)
class Terms:
    """What all candidates were to have. `simulated_seconds` is None where a model was trained."""

    affinity: Sequence[int]
    memory_nbytes: int
    cache: str
    simulated_seconds: float | None
    waits_for_steps: bool
    rounds: int
    unchecked: Sequence[str]


def check_rules(evidence: Mapping[str, Evidence], terms: Terms) -> list[Check]:
    """All rules, in order; of one that is not checked `held` is None."""
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
        if rule in terms.unchecked:
            checks.append(Check(rule, title, None, "not checked, as was asked for"))
            continue
        seen, broken_by = checkers[rule](evidence, terms)
        held = not broken_by and not (rule == "noise" and terms.rounds < MIN_ROUNDS)
        checks.append(Check(rule, title, held, seen, broken_by))
    return checks


def different_batches(checked: Checked, expected: Checked, reference: str) -> str | None:
    """Return how the batches of an epoch are not those of `reference`; None if they are."""
    if checked.digests == expected.digests:
        return None
    if checked.records != expected.records and Counter(checked.records) == Counter(expected.records):
        return f"the same records as {reference}, in another order"
    if len(checked.digests) != len(expected.digests):
        return f"{len(checked.digests)} batches, {reference} has {len(expected.digests)}"
    pairs = zip(checked.digests, expected.digests, strict=True)
    wrong = [number for number, (one, other) in enumerate(pairs) if one != other]
    records = sum((Counter(checked.records) - Counter(expected.records)).values())
    return (
        f"{len(wrong)} of {len(expected.digests)} batches differ from those of {reference}, the first is batch "
        f"{wrong[0]}; {records:,} of {checked.samples:,} records are not among its own"
    )


def pages_astray(samples: Mapping[int, Sample | Loads]) -> int:
    """Return how many pages of its files were not in the page cache, or out of it, as they were to be."""
    return sum(sample.pages_astray for sample in samples.values())


_Found = tuple[str, dict[str, str]]


def _samples(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:  # noqa: ARG001
    reference, first = next(iter(evidence.items()))
    broken = {}
    for name, each in evidence.items():
        reason = different_batches(each.check, first.check, reference)
        counts = {sample.epoch.samples for sample in each.samples.values()} - {first.check.samples}
        if reason is None and counts:
            reason = f"{counts.pop()} samples in an epoch that was timed, {first.check.samples} were to be loaded"
        if reason is not None:
            broken[name] = reason
    batches = len(first.check.digests)
    seen = f"128-bit digests of the shape, dtype and bytes of {batches} batches, before anything was timed"
    return seen, broken


def _compute(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:
    if terms.simulated_seconds is not None:
        each_step = f"a device that takes {terms.simulated_seconds * 1e3:g} ms for each batch, the same for all"
        return f"{each_step}; {_steps(terms)}", {}
    reference, first = next(iter(evidence.items()))
    broken = {}
    on_device = any(sample.device != "cpu" for each in evidence.values() for sample in each.samples.values())
    tolerance = DEVICE_SCORE_TOLERANCE if on_device else 0.0
    for name, each in evidence.items():
        if each.check.weights != first.check.weights:
            broken[name] = f"its initial weights are not those of {reference}"
        elif not _same_loss(each.check.score, first.check.score, tolerance):
            broken[name] = f"its loss is {each.check.score}, that of {reference} {first.check.score}"
    exactly = f"within {DEVICE_SCORE_TOLERANCE:.0%}; {_steps(terms)}" if on_device else "to the bit"
    return (
        "digests of the initial weights were compared, and the loss after the same steps, that of "
        f"{reference} being {first.check.score:.6g}, {exactly}",
        broken,
    )


def _steps(terms: Terms) -> str:
    if terms.waits_for_steps:
        return "the training loop waited for each step, as was asked for"
    return "one step was in flight while the next batch was loaded, and none was queued"


def _same_loss(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    # Of features that nobody normalised the loss may grow beyond all numbers, for every strategy alike.
    return math.isclose(one, other, rel_tol=tolerance) or (math.isnan(one) and math.isnan(other))


def _resources(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:
    cpus = len(terms.affinity)
    broken = {}
    busiest = 0.0
    for name, each in evidence.items():
        for number, sample in each.samples.items():
            wall = sample.epoch.wall.total
            busy = sample.cpu_seconds / wall
            busiest = max(busiest, busy)
            if sample.affinity != list(terms.affinity):
                broken[name] = f"it ran on CPUs {sample.affinity} in round {number}"
            elif terms.simulated_seconds is None and sample.torch_threads != each.threads.compute:
                broken[name] = f"it computed with {sample.torch_threads} threads in round {number}"
            elif busy > cpus * (1 + CPU_TOLERANCE) + 0.1 / wall:
                broken[name] = f"it had {busy:.2f} CPUs in round {number}"
        if each.check.peak_memory > terms.memory_nbytes:
            broken[name] = f"it took {each.check.peak_memory / 1e6:,.0f} MB"
    peak = max(each.check.peak_memory for each in evidence.values())
    listed = ", ".join(map(str, terms.affinity))
    seen = (
        f"all were bound to CPUs {listed}, loading and compute together; the busiest used {busiest:.2f} CPUs, the "
        f"largest {peak / 1e6:,.0f} MB of {terms.memory_nbytes / 1e6:,.0f}"
    )
    return seen, broken


def _cache(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:
    wanted = "in" if terms.cache == "warm" else "out of"
    broken = {}
    for name, each in evidence.items():
        astray = pages_astray(each.samples)
        if astray:
            broken[name] = f"{astray:,} pages of its files were not {wanted} the page cache"
    how = "read" if terms.cache == "warm" else "dropped with posix_fadvise"
    seen = f"{terms.cache}: before each epoch its files were {how}, and every page was looked for with mincore"
    untold = max(sample.files_untold for each in evidence.values() for sample in each.samples.values())
    if untold:
        seen += f", which tells nothing of {untold:,} files that are somebody else's"
    return seen, broken


def _cost(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:  # noqa: ARG001
    broken = {
        name: "what writing its store costs was not measured"
        for name, each in evidence.items()
        if each.is_presaved and each.writing is None
    }
    stores = [each.writing for each in evidence.values() if each.writing is not None]
    if not any(each.is_presaved for each in evidence.values()):
        return "no strategy needs a store", broken
    return (
        f"this comparison wrote the stores of {len(stores)} strategies; their seconds and bytes, and when they pay "
        "off, are below",
        broken,
    )


def _noise(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:
    fewest = min((len(each.samples) for each in evidence.values()), default=0)
    seen = (
        f"{terms.rounds} rounds in shuffled order, each begun in a new server whose layout in memory was drawn anew; "
        f"each strategy in at least {fewest} of them, in fresh processes: so many independent repetitions"
    )
    if terms.rounds < MIN_ROUNDS:
        return f"{seen}: fewer than the {MIN_ROUNDS} that an interval needs, so no difference is claimed", {}
    return f"{seen}; signed-rank intervals of the ratio, 95%", {}


def _loaded(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:  # noqa: ARG001
    broken = {
        name: f"{each.check.pages_absent:,} pages of its batches were not in memory when compute began"
        for name, each in evidence.items()
        if each.check.pages_absent
    }
    pages = next(iter(evidence.values())).check.pages_touched
    return (
        f"one byte of each of {pages:,} pages an epoch is read while loading is timed; then mincore was asked for each",
        broken,
    )


def _sum(evidence: Mapping[str, Evidence], terms: Terms) -> _Found:  # noqa: ARG001
    shares = {name: each.parts.unexplained_seconds / each.parts.wall_seconds for name, each in evidence.items()}
    broken = {
        name: f"{share:.2%} of its wall time is unexplained"
        for name, share in shares.items()
        if abs(share) > UNEXPLAINED_TOLERANCE
    }
    return f"at most {max(map(abs, shares.values())):.2%} of a strategy's wall time is unexplained", broken
