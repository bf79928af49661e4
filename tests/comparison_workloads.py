"""Workloads of comparisons on small tables, and profiles and samples for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from etl.comparison.judge.results import Measurements
from etl.comparison.request.answers import AuditedSample, PipelineProfile, SplitProfile, StageProfile, TriedLoader
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.settings import Settings
from etl.comparison.run.workload import Workload
from etl.measuring.clock import EpochMetrics, Split
from etl.measuring.noise import ProbeSeconds
from etl.measuring.sample import Spans
from etl.measuring.waiting import WaitTimes

COLUMNS = 4
# The first try of a user's loader that returns a DataLoader without workers.
TRIED = TriedLoader(
    seconds_per_batch=0.01,
    batches=10,
    samples=320,
    has_ended=True,
    epoch_batches=10,
    read_ahead=4,
    workers=0,
    has_selected_records=True,
    compute_seconds=0.02,
    settings={"num_workers": [0, 1, 2], "prefetch_factor": [2, 4], "persistent_workers": [True, False]},
    given={"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
)


def write_table(folder: Path, rows: int = 200) -> Path:
    """Write a CSV file with `COLUMNS` columns of numbers and a column `kind` of three names."""
    random = np.random.default_rng(0)
    path = folder / "table.csv"
    lines = [",".join([*(f"column{number}" for number in range(COLUMNS)), "kind"])]
    values, kinds = random.standard_normal((rows, COLUMNS)), random.integers(3, size=rows)
    lines += [
        ",".join([*(f"{each:.4f}" for each in row), "abc"[kind]]) for row, kind in zip(values, kinds, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def broken_rules(disqualified: Iterable[str]) -> list[str]:
    """Return what a strategy is disqualified for, but not that on busy CPUs the harness itself has waited."""
    return [each for each in disqualified if not each.startswith("sum:")]


def make_workload(folder: Path, rows: int = 200, cpus: int = 2, **settings: Any) -> Workload:
    """Return the workload of a table; stores are written below `folder`."""
    table = write_table(folder, rows)
    chosen = {"batch_size": 10, "table_options": {"label": "kind"}, **settings}
    return Workload(Settings(source=str(table), **chosen), folder, cpus)


def make_profile() -> PipelineProfile:
    """Return a profile with 1 ms per record to load it, and 10 ms per training step."""
    return PipelineProfile(
        stages=[StageProfile("read", 1e-3, 16.0)],
        compute_seconds={"1": 1e-2, "2": 1e-2},
        splits=[SplitProfile(compute, loading, 1e3, 1.0, 1.0) for compute, loading in ((1, 1), (1, 2), (2, 2))],
        copy_bytes_per_second=1e9,
        device="cpu",
    )


def make_sample(**metrics: Any) -> AuditedSample:
    """A sample of 10 batches of 10 records, each loaded in 10 ms and computed on in 10 ms; `metrics` replace its own,
    or those of its epoch.
    """
    loading, steps = Split(0.01, 0.09), Split(0.01, 0.09)
    epoch = EpochMetrics(
        batches=10, samples=100, wall=Split(0.02, 0.18), compute=steps, stall=loading, host_wait=loading
    )
    of_epoch = {name: metrics.pop(name) for name in list(metrics) if name in EpochMetrics.__dataclass_fields__}
    sample = AuditedSample(
        epoch=replace(epoch, **of_epoch),
        etl_alone=loading,
        stalls=[[0.01] * 10],
        compute_alone=0.01,
        harness=0.0,
        cpu_seconds=0.2,
        read_nbytes=1000,
        peak_memory=10**6,
        steal=0.0,
        other_processes=0.0,
        probes=[ProbeSeconds(0.001, 0.01)] * 2,
        frequencies=[],
        affinity=[0, 1],
        torch_threads=2,
        device="cpu",
        misplaced_pages=0,
        unreported_files=0,
        timeline=Spans([], [], []),
        loading_waits=WaitTimes(waited=0.09, loop_busy=0.06, loaders_busy=0.0, loaders=0, pressure=None),
        transfer=Split(0.0, 0.0),
    )
    return replace(sample, **metrics)


def make_measurements(
    workload: Workload, samples: Mapping[Candidate, Mapping[int, AuditedSample]], **measured: Any
) -> Measurements:
    """Return measurements of the workload of which nothing is known but its samples; `measured` replaces the rest."""
    made = Measurements(
        work=workload.prepared(),
        started_at="2025-11-21T17:16:04+00:00",
        seconds=60.0,
        affinity=[0, 1],
        memory_nbytes=10**9,
        profile=make_profile(),
        trials={},
        written={},
        checks={},
        failed={},
        samples=samples,
        loads={},
        randomness=None,
        rounds=1,
        stopped_early=False,
        end_reason="",
        timelines=[],
    )
    return replace(made, **measured)
