"""The share of loading that is hidden behind compute, and the cost of the machinery that hides it.

    python -m benchmarks.overlap [--photographs N] [--rounds N] [--threads N]     prints the tables

Compute is first a wait, which leaves the CPU free as a GPU does, and then real training on the same cores. Overlap is
`max(ETL alone, compute alone) / wall` of one epoch, its first batch included; 1.0 is perfect.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import etl
from benchmarks.cells import chosen_profile
from benchmarks.console import print_table, wide_console
from benchmarks.datasets import find_photographs
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.device import wait_until
from benchmarks.public_names import load_kernels
from benchmarks.suite import SEED, TimedSuite, Timings, as_samples, attributes, explained, spread

PROFILE = chosen_profile()
BATCH_SIZE, IMAGE_SIZE, PREFETCH_SIZE, THREADS = 16, 224, 4, 2
# ETL over compute. Below 1 compute is the bottleneck, above it loading is.
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
RATIOS_IN_ASV = (0.25, 1.0, 4.0)
WORKERS = ("thread", "process")
EMPTY_BATCHES = 2000
# The example of Deeplearning4j's guide to performance debugging: a step takes 100 ms and a batch 200, or 50.
EXAMPLE_COMPUTE_SECONDS, EXAMPLE_LOAD_SECONDS, EXAMPLE_BATCHES = 0.1, (0.2, 0.05), 40
MEASURING_TIMEOUT_SECONDS = 3600
AIM = 0.98


@explained
class Overlap(TimedSuite):
    """An epoch of photographs, decoded by two threads or processes, beside compute that is a wait. `etl_over_compute`
    is the time to load an epoch divided by the sum of its waits.
    """

    params = [list(WORKERS), list(RATIOS_IN_ASV)]
    param_names = ["workers", "etl_over_compute"]

    @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
    def setup_cache(self) -> Timings:
        photographs = find_photographs(PROFILE.samples)
        results: Timings = {}
        for each in workers():
            results |= measure_overlap(photographs, RATIOS_IN_ASV, PROFILE.rounds, THREADS, each)
        return results | measure_machinery(PROFILE.rounds)

    def operations(self, workers: str, etl_over_compute: float) -> tuple[str, ...]:
        return (loading_beside(workers, etl_over_compute),)

    @attributes(unit="ratio")
    def track_overlap(self, cache: Timings, *values: Any) -> dict[str, Any]:
        """Maximum of loading alone and compute alone, over wall time: 1.0 is perfect."""
        (operation,) = self.operations(*values)
        return as_samples(cache[operation])


@explained
class Machinery(TimedSuite):
    """The cost of threads if there is nothing to load."""

    setup_cache = Overlap.setup_cache

    def operations(self) -> tuple[str, ...]:
        return "empty batch", "first batch"

    @attributes(unit="seconds")
    def track_empty_batch(self, cache: Timings) -> dict[str, Any]:
        """Seconds that threads add to a batch of one record with one number."""
        return as_samples(cache["empty batch"])

    @attributes(unit="ratio")
    def track_first_batch_over_plain(self, cache: Timings) -> dict[str, Any]:
        """Seconds to the first batch of a new asynchronous iterator, over those of a plain one."""
        return as_samples(cache["first batch"])


def wait(seconds: float) -> None:
    """Wait, which leaves the CPU free."""
    if seconds:
        wait_until(time.perf_counter() + seconds)


def loading_beside(workers: str, etl_over_compute: float) -> str:
    """Return the name of the epochs in which `workers` load beside compute."""
    return f"{workers} {etl_over_compute:g}"


def workers() -> tuple[str, ...]:
    """Return the kinds of `WORKERS` that this commit has."""
    return tuple(each for each in WORKERS if each == "thread" or "processes" in signature(etl.AsyncIterator).parameters)


def make_iterator(
    photographs: Path, count: int, batch_size: int = BATCH_SIZE, workers: str = "thread"
) -> etl.AsyncIterator:
    """Return an iterator over photographs, decoded to normalised float32 by `count` of `WORKERS`."""
    decoder = "turbo" if "turbo" in etl.stages.DECODERS else "pillow"
    pipeline = etl.image_pipeline(IMAGE_SIZE, decoder)
    raw = etl.RawIterator(etl.ImageFolder(photographs), pipeline, batch_size, shuffle=True, seed=SEED)
    if workers == "process":
        return etl.AsyncIterator(raw, PREFETCH_SIZE, workers=workers, processes=count)
    return etl.AsyncIterator(raw, PREFETCH_SIZE, threads=count)


def measure_overlap(photographs: Path, wanted: tuple[float, ...], rounds: int, count: int, workers: str) -> Timings:
    """Measure the overlap for each ratio of ETL to compute, each time between two epochs of loading alone."""
    load_kernels()
    results: Timings = {loading_beside(workers, ratio): [] for ratio in wanted}
    with make_iterator(photographs, count, workers=workers) as iterator:
        _run_epoch(iterator)
        for _ in range(rounds):
            before, _ = _run_epoch(iterator)
            for ratio in wanted:
                wall, compute = _run_epoch(iterator, before / len(iterator) / ratio)
                after, _ = _run_epoch(iterator)
                # The machine's speed drifts: loading alone is the mean of just before and just after.
                results[loading_beside(workers, ratio)].append(max((before + after) / 2, compute) / wall)
                before = after
    return results


def _run_epoch(iterator: Any, compute_seconds: float = 0.0) -> tuple[float, float]:
    """Return the seconds of an epoch, and of its waits.

    The clock of the other suites is not used: it touches every page of a batch in the caller, which is 1% of a step.
    """
    waited = 0.0
    started = time.perf_counter()
    for _ in iterator:
        began = time.perf_counter()
        wait(compute_seconds)
        waited += time.perf_counter() - began
    return time.perf_counter() - started, waited


def measure_machinery(rounds: int) -> Timings:
    """Measure the seconds that threads add to an empty batch, and the first batch over the plain iterator's."""
    record = {"features": np.zeros(1, np.float32), "label": 0}
    results: Timings = {"empty batch": [], "first batch": []}
    for _ in range(rounds):
        plain = etl.RawIterator([record] * EMPTY_BATCHES, etl.Pipeline([]), 1)
        alone, _ = _run_epoch(plain)
        with etl.AsyncIterator(plain, PREFETCH_SIZE, threads=THREADS) as iterator:
            results["empty batch"].append((_run_epoch(iterator)[0] - alone) / EMPTY_BATCHES)
        results["first batch"].append(_seconds_to_first(PREFETCH_SIZE) / _seconds_to_first(0))
    return results


def _seconds_to_first(prefetch_size: int) -> float:
    """Return the seconds to the first batch. Its records wait, so that they take the same time at any speed."""
    source = WaitingSource(0.001, 256)
    with etl.AsyncIterator(etl.RawIterator(source, etl.Pipeline([]), 64), prefetch_size, threads=1) as iterator:
        started = time.perf_counter()
        epoch = iter(iterator)
        next(epoch)
        return time.perf_counter() - started


class WaitingSource:
    """A source of `count` records. Reading one is a wait of `seconds`, which leaves the CPU free."""

    thread_safe = True

    def __init__(self, seconds: float, count: int) -> None:
        self._seconds, self._count = seconds, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        wait(self._seconds)
        return {"features": np.zeros(4, np.float32), "label": index}


def measure_example() -> Iterator[tuple[float, float]]:
    """Yield each loading time of the guide's example, and the stall of each batch after the first, in seconds."""
    for seconds in EXAMPLE_LOAD_SECONDS:
        plain = etl.RawIterator(WaitingSource(seconds, EXAMPLE_BATCHES), etl.Pipeline([]), 1)
        with etl.AsyncIterator(plain, 2, threads=1) as iterator:
            times = run_epoch(iterator, lambda _: wait(EXAMPLE_COMPUTE_SECONDS))
        yield seconds, (times.stall.total - seconds) / (EXAMPLE_BATCHES - 1)


def measure_beside_compute(photographs: Path, rounds: int, threads: int) -> Timings:
    """Measure training on the cores that also load: its wall time over the least possible, and its overlap."""
    import torch

    results: Timings = {"wall over limit": [], "overlap": []}
    with make_iterator(photographs, threads, 32) as iterator, etl.runtime.ThreadPolicy(compute=1):
        batch = next(iter(iterator))
        model = etl.models.create("residual", batch.features.shape[1:], 10, seed=SEED).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def train(batch: Any) -> None:
            optimizer.zero_grad(set_to_none=True)
            outputs = model(torch.from_numpy(batch.features))
            torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.labels)).backward()
            optimizer.step()

        train(batch)
        resident = etl.SyntheticIterator.repeating(batch, len(iterator))
        for _ in range(rounds):
            loading, loading_cpu = _with_cpu(iterator, None)
            compute, compute_cpu = _with_cpu(resident, train)
            wall, _ = _with_cpu(iterator, train)
            limit = max(compute, (loading_cpu + compute_cpu) / threads)
            results["wall over limit"].append(wall / limit)
            results["overlap"].append(max(loading, compute) / wall)
    return results


def _with_cpu(iterator: Any, compute: Any) -> tuple[float, float]:
    started = time.process_time()
    wall = run_epoch(iterator, compute).wall.total
    return wall, time.process_time() - started


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--photographs", type=int, default=2048, metavar="N", help="photographs in an epoch (default: 2048)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="interleaved rounds (default: 3)")
    parser.add_argument(
        "--threads", type=int, default=THREADS, metavar="N", help=f"threads or processes that load (default: {THREADS})"
    )
    options = parser.parse_args(arguments)
    console, photographs = wide_console(), find_photographs(options.photographs)
    table = Table(
        title=f"Overlap: {options.photographs // BATCH_SIZE} batches, {options.threads} workers, compute waits",
    )
    for column in ("workers", "ETL / compute", "max(ETL, compute) / wall", "aim"):
        table.add_column(column, justify="right")
    for each in workers():
        overlaps = measure_overlap(photographs, RATIOS, options.rounds, options.threads, each)
        for ratio in RATIOS:
            table.add_row(each, f"{ratio:g}", spread(overlaps[loading_beside(each, ratio)], 3), f"{AIM}")
    print_table(table, console, keys=2)
    machinery = measure_machinery(options.rounds)
    added = spread([each * 1e6 for each in machinery["empty batch"]], 0)
    console.print(f"threads add to an empty batch: {added} microseconds")
    console.print(f"first batch over the plain iterator's: {spread(machinery['first batch'])}")
    for seconds, stall in measure_example():
        console.print(
            f"loading {seconds * 1e3:.0f} ms, compute {EXAMPLE_COMPUTE_SECONDS * 1e3:.0f} ms: "
            f"stall {stall * 1e3:.1f} ms an iteration"
        )
    beside = measure_beside_compute(photographs, options.rounds, options.threads)
    median = statistics.median(beside["overlap"])
    limit = spread(beside["wall over limit"])
    console.print(f"training on the same cores: wall over its limit {limit}; overlap {median:.2f}")


if __name__ == "__main__":
    main()
