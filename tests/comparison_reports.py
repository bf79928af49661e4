"""Example reports of comparisons, with metrics like those of the demonstration photographs and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etl.comparison.judge.noise import Noise
from etl.comparison.judge.rank_results import RankResult
from etl.comparison.judge.report import (
    SCHEMA_VERSION,
    Check,
    Losses,
    Parts,
    Presaving,
    ProfileResult,
    RoundFigures,
    Scenario,
    ScenarioResult,
    SplitTrial,
    StageResult,
    StallTails,
    StrategyResult,
    Timeline,
)
from etl.comparison.judge.rules import RULES
from etl.comparison.judge.sameness import Sameness
from etl.comparison.request.answers import SplitProfile, StageProfile
from etl.comparison.show.report import Report
from etl.measuring.statistics import Interval

HOSTILE = "<script>document.title = 'taken'</script>\" onload='x' & \udcff"
RECORDS, MEASURED_RECORDS, BATCH_SIZE, ROUNDS = 2000, 512, 64, 9


def photographs() -> Report:
    """Return a report of four strategies in which all rules held."""
    raw = strategy("raw", 6.31, 3.12, 0.02, 3.155, etl=3.02)
    ahead = strategy("async-raw", 4.42, 3.12, 0.64, 0.648, etl=3.14, against=0.7003)
    saved = strategy("presaved", 3.31, 3.12, 0.012, 0.1663, etl=0.159, against=0.5246)
    both = strategy("async-presaved", 3.29, 3.12, 0.121, 0.0377, etl=0.161, against=0.5214)
    return Report(
        schema_version=SCHEMA_VERSION,
        title="photographs/: 2,000 JPEG photographs in 10 classes",
        settings={
            "compute": "training",
            "source": "photographs/",
            "strategies": ["raw", "async-raw", "presaved", "async-presaved"],
            "formats": ["npy"],
            "batch_size": 64,
            "dtype": "float32",
            "model": "residual",
            "cache": "warm",
            "threads": 2,
            "budget_seconds": 60.0,
            "memory_budget": None,
            "pin": False,
        },
        machine={"cpu": "AMD EPYC 7B13", "cpus": [0, 1], "memory_nbytes": 8_200_000_000, "virtual": True},
        versions={"fair-etl": "0.1.0", "python": "3.11.2", "numpy": "2.3.4", "torch": "2.9.1"},
        started_at="2025-11-21T17:16:04+00:00",
        seconds=63.4,
        source_records=RECORDS,
        measured_records=MEASURED_RECORDS,
        batch_size=BATCH_SIZE,
        order_seed=7,
        stopped_early=False,
        recommendation=[
            "Use presaved after resize (npy): an epoch takes 0.52 times as long as raw (0.50 to 0.55).",
            "Writing the store takes 3.4 s and 301 MB once, which pays off after 3.1 epochs.",
            "Loading ahead beside it shows no further difference.",
        ],
        notes=["Figures are of 512 records, scaled to all 2,000."],
        strategies=[raw, ahead, saved, both],
        stages=[
            stage("raw", 3.02, 0, 6.31),
            stage("read", 2.97, 78_300_000, 6.26, 0.31),
            stage("decode", 0.91, 1_104_000_000, 4.13, 5.13),
            stage("resize", 0.159, 301_100_000, 3.31, 3.4),
            stage("channels_first", 0.148, 301_100_000, 3.29, 3.5),
            stage("normalise", 0.282, 1_204_300_000, 3.44, 6.2),
        ],
        profile=ProfileResult(
            stages=[
                StageProfile("read", 1.9e-5, 39_150),
                StageProfile("decode", 1.03e-3, 552_000),
                StageProfile("resize", 2.8e-4, 150_528),
                StageProfile("channels_first", 1.2e-5, 150_528),
                StageProfile("normalise", 7.9e-5, 602_112),
            ],
            compute_seconds_per_batch={"1 thread": 0.187, "2 threads": 0.0988},
            splits=[SplitProfile(1, 1, 660.0, 1.21, 1.34), SplitProfile(2, 2, 1250.0, 1.9, 2.1)],
            copy_bytes_per_second=9.4e9,
        ),
        checks=[Check(rule, title, True, "seen") for rule, title in RULES.items()],
        noise=Noise([2449.998, 2450.0]),
        timelines=[
            timeline("raw", 0.0966, 0.098, None),
            timeline("async-raw", 0.02, 0.118, 0.131),
            timeline("presaved", 0.005, 0.098, None),
            timeline("async-presaved", 0.001, 0.1, 0.005),
        ],
    )


def changed(number: int, **metrics: Any) -> Report:
    """Return `photographs()` with other metrics of strategy `number`."""
    report = photographs()
    strategies = list(report.strategies)
    strategies[number] = replace(strategies[number], **metrics)
    return replace(report, strategies=strategies)


def changed_round(number: int, **metrics: Any) -> Report:
    """Return `photographs()` with other metrics of the first round of strategy `number`."""
    first, *others = photographs().strategies[number].rounds
    return changed(number, rounds=[replace(first, **metrics), *others])


def broken_by(name: str) -> Report:
    """Return `photographs()` in which the strategy `name` broke the first rule."""
    report = photographs()
    first, *others = report.checks
    return replace(report, checks=[replace(first, held=False, broken_by={name: "other pixels"}), *others])


def one_strategy() -> Report:
    """Return a report of `raw` alone: no ratio, no store, no stage."""
    report = photographs()
    return replace(report, strategies=report.strategies[:1], stages=[], timelines=report.timelines[:1])


def many_with_long_names() -> Report:
    """Return a report of twelve strategies with long names and reasons."""
    report = photographs()
    formats = ("npy", "hdf5", "hdf5-gzip", "safetensors", "torch", "pickle")
    results = [
        replace(
            strategy(
                name, 6.31 - 0.21 * index, 3.12, 0.05, 3.1 - 0.21 * index, etl=3.1, against=1 - 0.03 * (index + 1)
            ),
            format=kind,
        )
        for index, (name, kind) in enumerate(
            (f"{ahead}presaved, {kind}, after channels_first", kind) for ahead in ("", "async-") for kind in formats
        )
    ]
    results[0] = replace(results[0], ratio=None)
    broken = {
        "samples": "batch 17 has other bytes than the reference's, the first at record 1,094 of the source",
        "cache": "12% of the pages were not in memory before the third measurement",
    }
    checks = [
        replace(each, held=False, broken_by={results[5].name: broken[each.rule]}) if each.rule in broken else each
        for each in report.checks
    ]
    lanes = [replace(report.timelines[index % 4], strategy=each.name) for index, each in enumerate(results)]
    return replace(report, strategies=results, checks=checks, timelines=lanes)


def faster_beside_loading() -> Report:
    """Return a report whose interference and unexplained time are below zero, which is noise."""
    report = photographs()
    saved = strategy("presaved", 3.2, 3.21, -0.05, 0.0388, etl=0.159, against=0.507)
    return replace(report, strategies=[report.strategies[0], saved], timelines=report.timelines[::2])


def little_measured() -> Report:
    """Return a report without any optional value: intervals, ETL alone of a round, clock, timelines."""
    report = photographs()
    return replace(
        report,
        strategies=[
            replace(
                each,
                ratio=None,
                presaving=None,
                rounds=[replace(metrics, etl_alone_seconds=None) for metrics in each.rounds[:1]],
            )
            for each in report.strategies
        ],
        stages=[replace(each, ratio=None) for each in report.stages[:1]],
        noise=Noise([]),
        timelines=[],
        notes=[],
    )


def hostile() -> Report:
    """Return a report whose outside texts contain markup, quotes and a byte that is not valid UTF-8."""
    report = photographs()
    names = [f"{each.name}{HOSTILE}" for each in report.strategies]
    return replace(
        report,
        title=HOSTILE,
        settings={HOSTILE: HOSTILE, "command": HOSTILE, "nested": {"deep": [HOSTILE]}},
        machine={"cpu": HOSTILE},
        versions={HOSTILE: HOSTILE},
        recommendation=[HOSTILE],
        notes=[HOSTILE],
        strategies=[replace(each, name=name) for each, name in zip(report.strategies, names, strict=True)],
        stages=[replace(each, stage=f"{each.stage}{HOSTILE}") for each in report.stages],
        profile=replace(
            report.profile,
            stages=[replace(each, name=f"{each.name}{HOSTILE}") for each in report.profile.stages],
            compute_seconds_per_batch={HOSTILE: 0.1},
        ),
        checks=[
            Check(HOSTILE, HOSTILE, None, HOSTILE),
            *(Check(HOSTILE, HOSTILE, False, HOSTILE, dict.fromkeys(names, HOSTILE)) for _ in report.checks[1:]),
        ],
        timelines=[replace(each, strategy=name) for each, name in zip(report.timelines, names, strict=True)],
    )


def everything() -> Report:
    """Return a report with all that one can have.

    It has user loaders, one of which is disqualified, ranks, scenarios, a rule that was not checked, and noise.
    """
    report = photographs()
    close = Sameness("close", "the bytes of 512 records differ", 0.0141, 0.0062, 170.4, True)
    in_order = Sameness("same records", "the order differs from that of raw", displacement=0.0, is_shuffled=False)
    mine = loader("mine", 4.1, 0.9, against=0.65, sameness=close, presaving=Presaving(6.2, 298_000_000))
    mine = replace(mine, host_wait_seconds=1.4, peak_device_memory_nbytes=1_400_000_000)
    in_place = loader("sorted", 4.0, 0.8, against=0.634, sameness=in_order, measured_records=640)
    ranks = [
        RankResult(number, [2 * number, 2 * number + 1], 6.3, 1.2 + number, 1.3, 0.2, 3.4, wait, share, 812_000_000)
        for number, wait, share in ((0, 1.1, 0.02), (1, 0.03, 0.98))
    ]
    strategies = [replace(each, ranks=ranks) for each in (*report.strategies[:3], mine, in_place)]
    first, *others = strategies[0].rounds
    strategies[0] = replace(strategies[0], rounds=[replace(first, steal=0.31, other_processes=0.094), *others])
    reason = f"it does not shuffle, and other strategies do: {in_order.describe_order()}"
    seen = "mine close (0.014), sorted same records"
    samples = replace(report.checks[0], held=False, evidence=seen, broken_by={"sorted": reason})
    *checks, last = report.checks[1:]
    unchecked = replace(last, held=None, evidence="switched off with --no-check")
    *stages, normalise = report.stages
    unknown = ScenarioResult("raw", None, None, None, None, "its loader is unknown")
    predicted = [
        ScenarioResult(
            strategy=each.name,
            wall_seconds=each.parts.wall_seconds / 3,
            stall_seconds=each.parts.stall_seconds / 3,
            accelerator_utilisation=0.91 if each.loading_threads else 0.31,
            cpus_for_utilisation=123 if each.loading_threads else None,
            reason="" if each.loading_threads else "the training loop loads in one thread",
            extrapolated=["more CPUs than the 2 of this comparison"],
            cpus_extrapolated=bool(each.loading_threads),
        )
        for each in strategies
    ]
    inside = [
        replace(each, cpus_for_utilisation=1, reason="", extrapolated=[], cpus_extrapolated=False)
        for each in predicted[1:]
    ]
    return replace(
        report,
        settings={**report.settings, "ranks": len(ranks)},
        stopped_early=True,
        strategies=strategies,
        stages=[*stages, replace(normalise, disqualified=["batch 3 has other bytes than raw's"])],
        checks=[samples, *checks, unchecked],
        timelines=[
            *report.timelines[:3],
            *(replace(report.timelines[2], strategy=name, loads=[]) for name in ("mine", "sorted")),
        ],
        scenarios=[
            Scenario("cpus=16,compute=5ms,disk=1200MB/s,cache=12.5%", predicted),
            Scenario("compute=2x", [unknown, *inside]),
        ],
    )


REPORTS = {
    made.__name__: made
    for made in (
        photographs,
        everything,
        one_strategy,
        many_with_long_names,
        faster_beside_loading,
        little_measured,
        hostile,
    )
}


def strategy(
    name: str,
    wall: float,
    compute_alone: float,
    interference: float,
    stall: float,
    *,
    etl: float,
    against: float | None = None,
) -> StrategyResult:
    """Return a strategy with these seconds per epoch. `against` is its ratio; None for the reference."""
    kind = name.split(",", maxsplit=1)[0]
    harness = 0.0012
    stored = kind.endswith("presaved")
    return StrategyResult(
        name=name,
        strategy=kind,
        is_foreign=False,
        measured_records=MEASURED_RECORDS,
        sameness=None if against is None else Sameness("identical"),
        format="npy" if stored else None,
        stage="resize" if stored else None,
        compute_threads=2,
        loading_threads=2 if kind.startswith("async") else 0,
        parts=Parts(wall, compute_alone, interference, stall, harness),
        host_wait_seconds=stall,
        first_batch_seconds=etl / 32,
        losses=Losses(etl / 32, (stall - etl / 32) / 4, 0.0, "psi" if kind.startswith("async") else "cpu-time"),
        stall_tails=StallTails(stall / 32, stall / 16, stall / 8),
        etl_alone_seconds=etl,
        cpu_seconds_per_1000=0.4 + wall,
        peak_memory_nbytes=512_000_000 if stored else 641_000_000,
        read_nbytes=301_100_000 if stored else 78_300_000,
        ratio=None if against is None else Interval(against, against * 0.958, against * 1.047, ROUNDS),
        presaving=Presaving(3.4, 301_100_000) if stored else None,
        runtime=[],
        splits=[SplitTrial(1, 1, 5, wall * 1.31), SplitTrial(2, 2, 5, wall * 0.99)] if kind.startswith("async") else [],
        rounds=[
            RoundFigures(
                round=number,
                position=number % 4,
                started_at=1763745364.0 + number,
                wall_seconds=wall / 4 * (1 + number / 100),
                compute_seconds=(compute_alone + interference) / 4,
                stall_seconds=stall / 4,
                compute_alone_seconds=compute_alone / 4,
                etl_alone_seconds=etl / 4,
                cpu_seconds=wall / 3,
                steal=0.004,
                other_processes=0.012,
                speed_probe_seconds=0.0102,
                memory_probe_seconds=0.0081,
            )
            for number in range(ROUNDS)
        ],
    )


def loader(name: str, wall: float, stall: float, *, against: float, **more: Any) -> StrategyResult:
    """Return a user's loader: no format and no stage."""
    made = strategy(name, wall, 3.12, wall - 3.12 - stall - 0.0012, stall, etl=1.7, against=against)
    return replace(made, strategy=f"my_loaders:{name}", is_foreign=True, **more)


def stage(name: str, etl: float, size: int, wall: float, write: float = 0.0) -> StageResult:
    """Return the result of presaving after the stage `name`, in seconds per epoch."""
    stored = name != "raw"
    return StageResult(
        stage=name,
        strategy="presaved" if stored else "raw",
        format="npy" if stored else None,
        write_seconds=write,
        nbytes=size,
        etl_alone_seconds=etl,
        wall_seconds=wall,
        wall_is_estimated=stored and name != "resize",
        ratio=Interval(wall / 6.31, wall / 6.31 * 0.96, wall / 6.31 * 1.05, ROUNDS) if stored else None,
    )


def timeline(name: str, wait: float, compute: float, load: float | None) -> Timeline:
    """Return a timeline of sixteen batches; with `load`, one thread loads two batches ahead."""
    waits, computes, loads = [], [], []
    ready = taken = now = 0.0
    for batch in range(16):
        if load is not None:
            begun = max(ready, taken)
            ready = begun + load
            loads.append((0, begun, ready, batch))
            taken = computes[batch - 2][1] if batch >= 2 else 0.0
        start = max(now, ready) if load is not None else now + wait
        waits.append((now, start))
        computes.append((start, start + compute))
        now = start + compute
    return Timeline(name, waits, computes, loads)
