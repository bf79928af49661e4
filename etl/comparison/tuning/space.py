"""The configurations of a strategy: which settings may be varied, and which combinations are worth trying."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from PIL import Image

import presave
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.run.workload import Workload
from etl.images.pillow import FORMATS
from etl.stages import DECODERS
from etl.stages.pipeline import READ
from etl.stages.presets import PRESET_DECODERS
from etl.stages.stage import is_random, stage_name
from etl.strategies.settings import canonical

PREFETCH_SIZES = (1, 2, 4, 8)
# Settings that count workers, and those that experts switch on.
WORKERS, KEPT = ("num_workers", "workers", "loading_threads"), ("persistent_workers", "pin_memory")
# gzip reads at a tenth of the speed of the others, and zstd takes less space.
COMPRESSIONS = {"lzf": "h5py", "zstd": "hdf5plugin", "blosc2": "hdf5plugin"}
DECODER_PACKAGES = {"pillow": ("PIL",), "turbo": ("simplejpeg", "cv2")}
FORMAT_PACKAGES = {"torch": "torch", "safetensors": "safetensors"}
# Configurations of larger spaces are not counted one by one.
MAX_COUNTED = 20_000

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Dimension:
    """Settings that are varied together, such as compute_threads and loading_threads; the given values are first."""

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    def choices(self) -> Iterator[Values]:
        """Yield the values by name, the given ones first."""
        for each in self.values:
            yield dict(zip(self.names, each, strict=True))


class Space:
    """The configurations of a candidate.

    A configuration is a dict with a value for each setting. Two that differ only in settings without effect are equal.
    """

    def __init__(self, candidate: Candidate, dimensions: Iterable[Dimension], cpus: int) -> None:
        self._candidate = candidate
        self._cpus = cpus
        self.dimensions = [each for each in dimensions if len(each.values) > 1]
        self.given = {name: value for each in self.dimensions for name, value in next(each.choices()).items()}

    def changes(self, configuration: Values) -> dict[str, Any]:
        """Return the settings of a configuration that differ from those that were given, and have an effect."""
        effective = canonical(configuration)

        def as_given(name: str) -> Any:
            return canonical({**configuration, name: self.given[name]}).get(name)

        return {name: value for name, value in effective.items() if as_given(name) != value}

    def candidate(self, changes: Values) -> Candidate:
        """Return the candidate with these changes."""
        if self._candidate.is_foreign:
            return self._candidate.with_settings({**dict(self._candidate.settings), **changes})
        own = dict(self._candidate.settings)
        values = {**own, **self.given, **changes}
        # Without them the store has the name of the comparison's own.
        if "decoder" not in own and "decoder" not in changes:
            values.pop("decoder", None)
        return self._candidate.with_settings({name: value for name, value in values.items() if value is not None})

    def __len__(self) -> int:
        """Return the number of different configurations, or an upper bound if there are very many."""
        count = math.prod(len(each.values) for each in self.dimensions)
        if count > MAX_COUNTED:
            return count
        every = itertools.product(*(each.choices() for each in self.dimensions))
        return len({_key(self._chosen(choice)) for choice in every})

    def _chosen(self, choice: Iterable[Values]) -> dict[str, Any]:
        """Return the changes of a configuration with these values, and otherwise the given ones."""
        values = dict(self.given)
        for each in choice:
            values |= each
        return self.changes(values)

    def neighbours(self, changes: Values) -> Iterator[dict[str, Any]]:
        """Yield the changes of all configurations that differ from one with `changes` in one dimension."""
        start = {**self.given, **changes}
        for dimension in self.dimensions:
            for choice in dimension.choices():
                near = self.changes({**start, **choice})
                if near != changes:
                    yield near

    def expert(self) -> dict[str, Any]:
        """Return the changes that experts begin with: a worker for each CPU, kept for all epochs; pinned memory."""
        values = dict(self.given)
        for dimension in self.dimensions:
            for name in {*WORKERS}.intersection(dimension.names):
                counts = [each for each in dimension.choices() if type(each[name]) is int and each[name] <= self._cpus]
                values |= max(counts, key=lambda each: each[name], default={})
            for name in {*KEPT}.intersection(dimension.names):
                values[name] = True
        return self.changes(values)

    def first_choice(
        self, count: int, seed: int, is_allowed: Callable[[Values], bool] = lambda _: True
    ) -> list[dict[str, Any]]:
        """Return the changes of up to `count` configurations to begin with; the given one is the first.

        That of experts comes next, then those that differ from it or the given one in one setting, then random ones.
        Changes that are not allowed are left out.
        """
        drawn = random.Random(seed)
        expert = self.expert()
        around_expert, around_given = list(self.neighbours(expert)), list(self.neighbours({}))
        found = {_key({}): dict[str, Any]()}
        for near in (around_expert, around_given):
            drawn.shuffle(near)
        half = max(1, count // 2)
        for changes in filter(
            is_allowed, (expert, *around_expert[:half], *around_given[: max(0, half - len(around_expert))])
        ):
            found.setdefault(_key(changes), changes)
        for _ in range(20 * count):
            if len(found) >= count:
                break
            changes = self._chosen([drawn.choice(list(each.choices())) for each in self.dimensions])
            if is_allowed(changes):
                found.setdefault(_key(changes), changes)
        return list(found.values())[:count]


def _key(changes: Values) -> tuple[Any, ...]:
    return tuple(sorted(changes.items()))


def space_of(workload: Workload, candidate: Candidate, same_pixels: bool) -> Space:
    """Return what may be varied of `candidate`."""
    if candidate.is_foreign:
        return Space(candidate, _declared(workload, candidate), workload.cpus)
    return Space(candidate, _built_in(workload, candidate, same_pixels), workload.cpus)


def _declared(workload: Workload, candidate: Candidate) -> Iterator[Dimension]:
    """Yield the settings that a user's loader declares, and the compute threads beside it."""
    tried = workload.tried[candidate.origin]
    threads = workload.threads(candidate).compute
    settings: dict[str, Iterable[Any]] = {**tried.settings, **candidate.kind.settings}
    if workload.settings.simulated_seconds is None:
        settings.setdefault("compute_threads", workload.compute_counts())
    # A setting whose value is unknown has the value None, which is never passed on.
    present = {"compute_threads": threads, **tried.given, **dict(candidate.settings)}
    for name, values in settings.items():
        yield _single(name, present.get(name), values)


def _built_in(workload: Workload, candidate: Candidate, same_pixels: bool) -> Iterator[Dimension]:
    """Yield the settings of a strategy of this package."""
    given = workload.threads(candidate)
    if candidate.is_ahead:
        kinds = [candidate.origin, candidate.origin.with_settings({"workers": "process"})]
        splits = [given, *(split for each in kinds for split in workload.splits(each))]
        # Besides what a comparison tries: where loading is cheap, one thread beside compute on all CPUs may be best.
        splits.append(CpuSplit(max(each.compute for each in splits), 1))
        yield Dimension(
            ("compute_threads", "loading_threads"),
            tuple((each.compute, each.loading) for each in dict.fromkeys(splits)),
        )
        yield _single("workers", candidate.kind.ahead, ("thread", "process"))
        yield _single("prefetch_size", workload.prefetch_size(candidate), PREFETCH_SIZES)
    elif workload.settings.simulated_seconds is None:
        yield _single("compute_threads", given.compute, workload.compute_counts())
    if not same_pixels:
        own = candidate.setting("decoder", workload.settings.decoder)
        yield _single("decoder", own, usable_decoders(workload))
    if candidate.is_presaved:
        yield _single("stage", candidate.stage, _stages(workload))
        stored = (candidate.format, candidate.setting("compression"))
        yield Dimension(("format", "compression"), tuple(dict.fromkeys((stored, *usable_formats()))))


def _single(name: str, given: Any, values: Iterable[Any]) -> Dimension:
    return Dimension((name,), tuple((each,) for each in dict.fromkeys((given, *values))))


def usable_decoders(workload: Workload) -> list[str]:
    """Return the decoders that can be used; none if the pipeline is the user's own, or decodes nothing."""
    if workload.settings.pipeline is not None or "decode" not in workload.pipeline.names:
        return []
    decoders = PRESET_DECODERS if _are_large(workload) else tuple(DECODERS)
    return [each for each in decoders if all(map(importlib.util.find_spec, DECODER_PACKAGES[each.partition("-")[0]]))]


def _are_large(workload: Workload) -> bool:
    """Return whether a photograph has at least twice the sides that it is resized to, so that decoders can scale it."""
    try:
        with Image.open(io.BytesIO(workload.source[0]["features"]), formats=FORMATS) as image:
            return min(image.size) >= 2 * workload.settings.size
    except (OSError, ValueError, Image.DecompressionBombError):  # the comparison says what is wrong with it
        return False


def _stages(workload: Workload) -> list[str]:
    """Return the stages after which records can be presaved: those before the first random one."""
    return [READ, *map(stage_name, takewhile(lambda stage: not is_random(stage), workload.pipeline.stages))]


def usable_formats() -> Iterator[tuple[str, str | None]]:
    """Yield the formats of stores, with the compressions, whose packages are installed."""
    for each in presave.formats():
        package = FORMAT_PACKAGES.get(each)
        if each != "pickle" and (package is None or importlib.util.find_spec(package) is not None):
            yield each, None
    for compression, package in COMPRESSIONS.items():
        if importlib.util.find_spec(package) is not None:
            yield "hdf5", compression
