"""The meaning of a loop's times: whether it waits for data, why, and the one change to make."""

from __future__ import annotations

import linecache
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from etl import units
from etl.watching.times import Block, Fetch, LoopTimes, Place

# A loop waits for data if that takes more than this share of its time.
NOTICEABLE = 0.1
# A smaller gain is not given as a number.
LEAST_GAIN = 1.05
# Fewer blocks give no interval.
MIN_BLOCKS = 6
CONFIDENCE = 0.95
RESAMPLES = 1000
# A fetch of at least so many times the median is a slow one. They are the cause if they take half of the time, and are
# no more than this share of all.
SLOW, SLOW_SHARE = 3.0, 0.35
# Threads wait for storage, or the like, if they use a CPU for less than this part of loading.
BUSY = 0.5
# Memory runs out if this is so within an hour at its present pace.
SOON_SECONDS = 3600.0
COPIES = re.compile(r"\.(to|cuda|pin_memory)\(|\bdevice_put\(|\.(float|half|double)\(\)")
# On a device, lines that copy also wait for the steps before.
CONVERSIONS = re.compile(r"^(?!.*\.(to|cuda|cpu|item|tolist|numpy)\().*\.(float|half|double)\(\)")


@dataclass(frozen=True)
class Diagnosis:
    """The meaning of a loop's times.

    Attributes
    ----------
    loader : str
        What its loader is called.
    verdict : str
        "waits", "computes" or "cannot tell".
    share, low, high : float
        Time for data, over all time of the loop, and its 95% interval. The first batch of all does not count.
    wait_seconds, step_seconds : float
        Of a batch, on average.
    batches, epochs : int
        What was seen.
    start_seconds : float
        Wait for the first batch of all.
    cause : str
        "too few workers", "storage", "Python code", "copies", "starts of epochs", "slow records", "memory", "unknown",
        or "" if the loop does not wait.
    why : str
        The cause in a sentence, with what was measured.
    remedy : str
        What to do.
    gain : float or None
        How many times as fast that makes the loop, at best; None if that is unknown, as on a CUDA device, which may
        compute during a wait.
    """

    loader: str
    verdict: str
    share: float
    low: float
    high: float
    wait_seconds: float
    step_seconds: float
    batches: int
    epochs: int
    start_seconds: float
    cause: str = ""
    why: str = ""
    remedy: str = ""
    gain: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def describe(self, subject: str) -> str:
        """Return the verdict on `subject`, such as a script, with cause and remedy, in one to three lines."""
        times = f"{units.seconds(self.wait_seconds)} for each batch, {units.seconds(self.step_seconds)} of training"
        sure = f"95% interval {self.low:.0%} to {self.high:.0%}"
        if self.verdict == "cannot tell":
            seen = f"for {self.share:.0%} of the time ({sure})"
            if self.batches < MIN_BLOCKS:
                seen = f"{units.counted(self.batches, 'batch is', 'batches are')} too few"
            lines = [f"cannot tell if {subject} waits for data: {seen}; {times}."]
        elif self.verdict == "computes":
            lines = [f"{subject} does not wait for data: {self.share:.0%} of the time ({sure}); {times}."]
        else:
            lines = [f"{subject} waits for data {self.share:.0%} of the time ({sure}): {times}."]
        if self.why:
            lines.append(f"Why: {self.why}.")
        if self.remedy:
            gain = "" if self.gain is None else f"; at best {self.gain:.1f} times as fast here"
            if self.gain is not None and self.gain < LEAST_GAIN:
                gain = ", but that gains next to nothing here"
            lines.append(f"Do:  {self.remedy}{gain}.")
        return "\n".join(lines)


# Its name, why it is the cause, what to do, and the seconds that saves at best; None if that is unknown.
Cause = tuple[str, str, str, float | None]


def diagnose(times: LoopTimes, cpus: int, memory: Sequence[tuple[float, int, int]] = ()) -> Diagnosis:
    """Return what the times of a loop mean, on so many CPUs, and with so much memory left and used at some moments."""
    # Copies, because the loop and what samples it may go on meanwhile.
    now = {name: getattr(times, name).copy() for name in ("fetches", "loading", "stepping")}
    times = replace(times, **now)
    copies, copy_place = _copies(times)
    waited, stepped = times.waited + copies, times.stepped - copies
    total = waited + stepped
    share = waited / total if total else 0.0
    low, high = share_interval(_with_starts(times), copies / times.stepped if times.stepped else 0.0)
    # A step ends when its loop asks for the next batch of the epoch.
    is_seen = times.stepped > 0 or len(times.starts) < 2
    if not is_seen:
        low, high = 0.0, 1.0
    verdict = "waits" if low > NOTICEABLE else "computes" if high < NOTICEABLE else "cannot tell"
    cause = _memory(memory)
    if cause is None and not is_seen:
        why = "every batch begins an epoch of the loader, so that the steps are not seen"
        cause = "starts of epochs", why, "take batches in one `for batch in loader`, not with next(iter(loader))", None
    elif cause is None and verdict == "waits":
        cause = _cause(times, cpus, copies, copy_place)
    name, why, remedy, saved = cause or ("", "", "", None)
    # No more than the wait can be gained.
    left = total - max(0.0, min(saved or 0.0, waited))
    gain = None if saved is None or left <= 0 or _is_on_device() else total / left
    count, first = max(1, times.batches), times.starts[0] if times.starts else 0.0
    seen = (waited / count, stepped / count, times.batches, len(times.starts), first)
    return Diagnosis(times.name, verdict, share, low, high, *seen, name, why, remedy, gain)


def _cause(times: LoopTimes, cpus: int, copies: float, copy_place: Place | None) -> Cause:
    waited, workers = times.waited, times.settings.get("num_workers")
    divided = _if_divided(times)
    if copies > waited:
        remedy = "convert in Dataset.__getitem__; pin_memory=True and .to(device, non_blocking=True)"
        return "copies", f"{_at(copy_place)} copies and converts batches in the loop", remedy, copies
    starts = sum(times.starts[1:])
    if starts > waited / 2:
        typical = units.seconds(statistics.median(times.starts[1:]))
        why = f"every epoch begins with a wait of {typical}, {starts / waited:.0%} of all waiting"
        if workers and (times.is_remade or not times.settings.get("persistent_workers")):
            once = "one DataLoader for all epochs, with " if times.is_remade else ""
            return "starts of epochs", f"{why}: its workers start anew", f"{once}persistent_workers=True", starts
        return "starts of epochs", why, "move what __iter__ prepares to the constructor", starts
    batches = max(1, times.batches)
    fetch = statistics.fmean(each.seconds for each in times.fetches) if times.fetches else 0.0
    step = times.stepped / batches
    place = _top(times.loading)
    slow, usual = _slow_fetches(times.fetches)
    if slow:
        why = (
            f"one batch in {len(times.fetches) / len(slow):.0f} takes {units.seconds(statistics.median(slow))}, the "
            f"others {units.seconds(usual)}; the slow ones are at {_at(place)}"
        )
        ahead = f"num_workers above 0{divided} rides out some of them"
        if workers:
            ahead = f"prefetch_factor={4 * times.settings.get('prefetch_factor', 2)} rides out one of them"
        remedy = f"make those records cheaper, or presave them (`etl presave`); {ahead}"
        return "slow records", why, remedy, waited - max(0.0, (fetch / max(1, workers or 1) - step) * times.batches)
    loads_here = workers == 0 or (not workers and times.loads_here > sum(times.loading.values()) / 2)
    if not loads_here and not (workers and times.fetches):
        return _cause_elsewhere(times, place, cpus)
    busy, queued = _busy(times.fetches)
    count = max(1, workers or 0)
    waits = busy is not None and busy < BUSY and queued < BUSY
    needed = math.ceil(fetch / max(step, 1e-4)) if fetch else cpus
    # Threads that wait need no CPU of their own.
    wanted = max(count + 1, min(4 * cpus, needed)) if waits else min(cpus, max(count + 1, needed))
    load_cpu = fetch * (1.0 if busy is None else busy)
    best = max(step, fetch / wanted, (load_cpu + step) / cpus)
    saved = (waited / batches + step - best) * times.batches
    per_record = f"{units.seconds(fetch / max(1, times.batch_records))} a record" if fetch else "most of the time"
    why = f"{_at(place) if place else 'loading'} takes {per_record}"
    if loads_here:
        why += f"{', waiting, not computing,' if waits else ''} in the training process"
        if workers == 0:
            why += ": num_workers is 0"
            return "too few workers", why, f"num_workers={wanted}, persistent_workers=True{divided}", saved
        return "too few workers", why, "load ahead, with etl.AsyncIterator(loader) or a DataLoader's workers", saved
    why += f" in {units.counted(count, 'worker process', 'worker processes')}"
    if busy is not None and waits:
        why += f", {1 - busy - queued:.0%} of it waiting for storage or a network"
        remedy = f"num_workers={wanted}{divided}: workers that wait need no CPU of their own; or data that are nearer"
        return "storage", why, remedy, saved
    if count < cpus:
        return "too few workers", why, f"num_workers={wanted}{divided}", saved
    remedy = f"make that line cheaper, or do it once and keep the result (`etl presave`); all {cpus} CPUs are busy"
    return "Python code", why, remedy, waited


def _cause_elsewhere(times: LoopTimes, place: Place | None, cpus: int) -> Cause:
    """Return what a loop waits for whose batches threads load, or workers without reports, by the kernel's times."""
    workers = times.settings.get("num_workers")
    one, several = ("worker process", "worker processes") if workers else ("other thread", "other threads")
    storage = [each.storage for each in times.lost]
    watched = sum(each.waited for each in times.lost)
    at = f", mostly at {_at(place)}" if place else ""
    if not watched or None in storage:
        return "unknown", f"{several} load{at}; the kernel does not tell what they wait for", "", None
    waits = sum(each for each in storage if each is not None) / watched
    if waits > BUSY:
        remedy = f"load more batches at once: {several} that wait need no CPU; or keep the data nearer"
        return "storage", f"{several} load, {waits:.0%} of the wait without a CPU{at}", remedy, times.waited
    loaders = workers or max(each.loaders for each in times.lost)
    why = f"{units.counted(loaders, f'{one} loads', f'{several} load')}, on a CPU most of the wait{at}"
    if loaders and loaders < cpus:
        remedy = f"num_workers={cpus}{_if_divided(times)}" if workers else f"load with {cpus} threads"
        return "too few workers", why, remedy, times.waited * (1 - loaders / cpus)
    return "Python code", why, "make that cheaper, or do it once and keep the result (`etl presave`)", times.waited


def _if_divided(times: LoopTimes) -> str:
    """Return a condition for more workers if each of them would load all records, as of an IterableDataset."""
    if not times.settings.get("_dataset_kind"):
        return ""
    return ", if the IterableDataset gives each worker a part of its own (torch.utils.data.get_worker_info)"


def _memory(notes: Sequence[tuple[float, int, int]]) -> Cause | None:
    """Return that memory runs out, if this process takes ever more of it, and it will be gone soon."""
    recent = notes[len(notes) // 4 :]  # what a training needs, it takes at first
    if len(recent) < 8:
        return None
    import numpy as np  # here, since a script may have to set how many threads it has

    seconds, nbytes, used = (np.array(each, float) for each in zip(*recent, strict=True))
    slope, _ = np.polyfit(seconds - seconds[0], nbytes, 1)
    at, left, taken = ([part.mean() for part in np.array_split(each, 4)] for each in (seconds, nbytes, used))
    lost, grown = left[0] - left[-1], np.diff(taken) / np.diff(at)  # a second, since looks may be far apart
    until = nbytes[-1] / -slope if slope < 0 else math.inf
    is_steady = sorted(left, reverse=True) == left and lost >= 0.01 * nbytes[0] and min(grown) > max(grown) / 3
    if until > SOON_SECONDS or not is_steady or used[-1] - used[0] < lost / 2:  # or other programs take it
        return None
    pace, rest = units.nbytes(-slope * 60), units.nbytes(nbytes[-1])
    why = f"memory is used up by {pace} a minute, and {rest} are left: it runs out in {until / 60:.1f} min"
    remedy = "find what grows (`etl doctor --objects`); keep records in arrays, not in lists that workers copy"
    return "memory", why, remedy, None


def share_interval(blocks: Sequence[Block], of_steps: float = 0.0) -> tuple[float, float]:
    """Return an interval for the share of waits, and of this share of the steps, from samples of whole blocks.

    All is possible if there are too few.
    """
    if len(blocks) < MIN_BLOCKS:
        return 0.0, 1.0
    import numpy as np

    waits = np.array([each.waits + of_steps * each.steps for each in blocks])
    totals = np.array([each.waits + each.steps for each in blocks])
    chosen = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    sums = totals[chosen].sum(1)
    shares = waits[chosen].sum(1)[sums > 0] / sums[sums > 0]
    if not len(shares):
        return 0.0, 1.0
    low, high = np.quantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _with_starts(times: LoopTimes) -> list[Block]:
    """Return at most 32 blocks of consecutive steps, with the starts of epochs, all but the first, spread over them."""
    steps = [each for each in times.blocks if each.count]
    size = max(1, math.ceil(len(steps) / 32))
    joined = [Block.joined(steps[first : first + size]) for first in range(0, len(steps), size)]
    starts = times.starts[1:]
    for number, seconds in enumerate(starts):
        joined[number * len(joined) // len(starts)].waits += seconds
    return joined


def _copies(times: LoopTimes) -> tuple[float, Place | None]:
    """Return the seconds of steps in which the user's lines copy batches, by samples, and the most frequent line."""
    lines = CONVERSIONS if _is_on_device() else COPIES
    found = Counter(
        {at: count for at, count in times.stepping.items() if lines.search(linecache.getline(at.file, at.line))}
    )
    return (times.stepped * sum(found.values()) / times.step_samples if found else 0.0), _top(found)


def _is_on_device() -> bool:
    """Return True if torch may compute on a CUDA device while this process waits or copies."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def _slow_fetches(fetches: Sequence[Fetch]) -> tuple[list[float], float]:
    """Return the seconds of the slow batches, if they are few and take most of the time, and those of a usual one."""
    seconds = sorted(each.seconds for each in fetches)
    if len(seconds) < 20:
        return [], 0.0
    usual = statistics.median(seconds)
    slow = [each for each in seconds if each > SLOW * usual]
    excess = sum(slow) - usual * len(slow)
    is_cause = len(slow) <= SLOW_SHARE * len(seconds) and excess > 0.5 * sum(seconds)
    return (slow if is_cause else []), usual


def _busy(fetches: Sequence[Fetch]) -> tuple[float | None, float]:
    """Return the shares of loading in which its threads used a CPU, and were ready for one; None if it is unknown."""
    seconds = sum(each.seconds for each in fetches)
    if not seconds:
        return None, 0.0
    return sum(each.used for each in fetches) / seconds, sum(each.queued for each in fetches) / seconds


def _top(places: Counter[Place]) -> Place | None:
    """Return the line at which most samples are."""
    return places.most_common(1)[0][0] if places else None


def _at(place: Place | None) -> str:
    return "a line" if place is None else f"{place.function} ({Path(place.file).name}:{place.line})"
