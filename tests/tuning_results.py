"""Example results of tuning, with made-up costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from etl.comparison.tuning.tuning_results import Costs, TriedConfiguration, TunedStrategy, Tuning, with_front
from etl.measuring.statistics import Interval
from tests.comparison_reports import HOSTILE

ABOVE = "it takes 1,204 MB on disk, above --max-disk"


def photographs() -> Tuning:
    """Return a result of four strategies: of this package, and a user's loader with many settings."""
    return Tuning(
        source="photographs/",
        source_records=2000,
        measured_records=512,
        settings={"batch_size": 64, "dtype": "float32", "compute": "training", "cache": "warm", "pin": False},
        machine={"processor": "AMD EPYC 7B13", "cpus": [0, 1], "memory_nbytes": 8_200_000_000},
        versions={"fair-etl": "0.1.0", "python": "3.11.2", "numpy": "2.3.4", "torch": "2.9.1"},
        started_at="2026-11-21T17:16:04+00:00",
        seconds=754.2,
        strategies=[my_loader(), ahead(), presaved(), raw()],
    )


def everything() -> Tuning:
    """Return a result with all that one can have: also a strategy that failed, one of an earlier run, and a stop."""
    result = photographs()
    *others, kept = result.strategies
    return replace(
        result,
        strategies=[*others, replace(kept, is_cached=True)],
        failed={"mine": "no such module"},
        stopped_early=True,
    )


def raw() -> TunedStrategy:
    """Return a strategy without other settings than a decoder, which makes no difference."""
    tried = [configuration({}, 6.31, memory=0.31e9), configuration({"decoder": "turbo"}, 6.28, 0.9952, memory=0.31e9)]
    return strategy("raw", tried, {"decoder": "pillow"})


def ahead() -> TunedStrategy:
    """Return a strategy that loads ahead, with threads to choose."""
    tried = [
        configuration({"loading_threads": 2}, 4.42, 0.7003, memory=0.36e9),
        configuration({"loading_threads": 2, "prefetch_size": 8}, 4.44, 0.7037, memory=0.61e9),
        configuration({"prefetch_size": 8}, 6.2, memory=0.52e9),
        configuration({}, 6.31, memory=0.31e9),
    ]
    return strategy(
        "async-raw",
        tried,
        {"compute_threads": 1, "loading_threads": 1, "workers": "thread", "prefetch_size": 2},
        {"loading_threads": 2},
        untried=3,
        failed={"workers=process": "WorkerDied: a worker was killed by signal 9, which may be for want of memory"},
    )


def presaved() -> TunedStrategy:
    """Return a strategy whose fastest configuration exceeds a limit."""
    tried = [
        configuration({"stage": "normalise"}, 3.2, disk=1.204e9, prepare=6.2, dropped=ABOVE),
        configuration({"stage": "resize"}, 3.31, 0.8014, disk=301e6, prepare=3.4),
        configuration(
            {"stage": "resize", "format": "hdf5", "compression": "zstd"}, 3.52, 0.851, disk=241e6, prepare=4.9
        ),
        configuration(
            {"stage": "decode"}, 4.13, disk=1.104e9, prepare=5.1, dropped="it takes 1,104 MB on disk, above --max-disk"
        ),
        configuration({}, 4.14, disk=78.3e6, prepare=0.31),
    ]
    given = {"stage": "read", "format": "npy", "compression": None}
    return strategy("presaved", tried, given, {"stage": "resize"}, limits={"disk_nbytes": 5e8})


def my_loader() -> TunedStrategy:
    """Return a user's loader with more configurations than a table shows."""
    given = {
        "num_workers": 0,
        "persistent_workers": False,
        "pin_memory": False,
        "prefetch_factor": None,
        "fast_resize": False,
    }
    tried = [configuration({}, 5.1, memory=0.3e9)]
    for workers in (1, 2, 4, 8):
        for is_persistent in (False, True):
            for factor in (2, 4):
                settings: dict[str, Any] = {"num_workers": workers}
                settings |= {"persistent_workers": True} if is_persistent else {}
                settings |= {"prefetch_factor": factor} if factor != 2 else {}
                wall = 3.6 + abs(workers - 2) * 0.2 - 0.25 * is_persistent + 0.01 * factor
                ratio = wall / 5.1 if wall < 3.7 else None
                tried.append(configuration(settings, wall, ratio, memory=0.3e9 + workers * 0.21e9 + factor * 1e7))
    tried.append(
        configuration(
            {"num_workers": 2, "persistent_workers": True, "fast_resize": True, "pin_memory": True},
            3.3,
            0.647,
            memory=0.9e9,
        )
    )
    chosen = {"num_workers": 2, "persistent_workers": True}
    failed = {f"num_workers={number} and fast_resize": "ValueError: no such resize" for number in range(7)}
    name = "my_loader"
    return replace(
        strategy(name, tried, given, chosen, untried=12, failed=failed), strategy="my_loaders:make", is_foreign=True
    )


def hostile() -> Tuning:
    """Return a result in which every text from outside is `HOSTILE`."""
    result = photographs()
    strategies = [
        replace(
            each,
            name=HOSTILE,
            strategy=HOSTILE,
            given={HOSTILE: HOSTILE},
            chosen=_hostile(each.chosen),
            configurations=[
                replace(one, settings=_hostile(one.settings), dropped=one.dropped and HOSTILE)
                for one in each.configurations
            ],
            failed={HOSTILE: HOSTILE},
        )
        for each in result.strategies
    ]
    texts: dict[str, Any] = {HOSTILE: HOSTILE}
    return replace(
        result,
        source=HOSTILE,
        settings=texts,
        machine=texts,
        versions=texts,
        started_at=HOSTILE,
        strategies=strategies,
        failed=texts,
    )


def _hostile(settings: Any) -> dict[str, Any]:
    return {f"{name} {HOSTILE}": f"{value}{HOSTILE}" for name, value in settings.items()}


def one_strategy() -> Tuning:
    """Return a result of one strategy with one configuration."""
    single = strategy("presaved", [configuration({}, 3.31, disk=301e6, prepare=3.4)], {})
    return replace(photographs(), strategies=[single])


def all_dropped() -> Tuning:
    """Return a result in which no configuration is within the limits."""
    result = photographs()
    strategies = [
        replace(each, chosen={}, configurations=with_front(replace(one, dropped=ABOVE) for one in each.configurations))
        for each in result.strategies
    ]
    return replace(result, strategies=strategies)


def cached() -> Tuning:
    """Return a result of an earlier run, without rounds."""
    result = photographs()
    strategies = [
        replace(each, is_cached=True, configurations=[replace(one, ratio=None) for one in each.configurations])
        for each in result.strategies
    ]
    return replace(result, strategies=strategies, stopped_early=True)


def many() -> Tuning:
    """Return a result of twelve strategies with long names, in wide ranges of costs."""
    strategies = []
    for number in range(12):
        tried = [
            configuration({"cache_size": 10**step}, 0.002 * 3.0**step, disk=10 ** (9 - step), prepare=0.1 * number)
            for step in range(6)
        ]
        given = configuration({}, 2.0, disk=10**3)
        name = f"a loader with a name of forty letters, {number}"
        strategies.append(strategy(name, [*tried, given], {"cache_size": 0}, {"cache_size": 1}))
    return replace(photographs(), strategies=strategies)


def all_failed() -> Tuning:
    """Return a result in which no strategy could be tuned."""
    return replace(photographs(), strategies=[], failed={"raw": "ValueError: it has no settings", "mine": "it failed"})


def strategy(
    name: str,
    tried: list[TriedConfiguration],
    given: dict[str, Any],
    chosen: dict[str, Any] | None = None,
    **more: Any,
) -> TunedStrategy:
    """Return a strategy of this package, with the front marked."""
    return TunedStrategy(name, name, False, given, chosen or {}, with_front(tried), seconds=183.4, **more)


def configuration(
    settings: dict[str, Any],
    wall: float,
    ratio: float | None = None,
    *,
    prepare: float = 0.0,
    disk: float = 0.0,
    memory: float = 0.4e9,
    dropped: str = "",
) -> TriedConfiguration:
    """Return a configuration. It is a finalist if it has a ratio."""
    interval = None if ratio is None else Interval(ratio, ratio * 0.958, ratio * 1.047, 9)
    costs = Costs(wall, prepare, round(disk), round(memory))
    return TriedConfiguration(settings, costs, 11 if ratio else 2, ratio is not None, interval, dropped)


TUNINGS: dict[str, Callable[[], Tuning]] = {
    "photographs": photographs,
    "everything": everything,
    "one_strategy": one_strategy,
    "many": many,
    "cached": cached,
    "all_dropped": all_dropped,
    "all_failed": all_failed,
    "hostile": hostile,
}
