"""Photographs decoded in every epoch, against the limit that the decoder alone sets.

    python -m benchmarks.decode [--photographs N] [--rounds N] [--threads N]     prints the table

The work is a whole epoch of batches of 64, shuffled: read, decode, resize to 224 x 224, normalise to float32 channels
first. The decoder alone decodes the same files from memory, with the same threads, and drops the pixels.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import etl
from benchmarks.cells import chosen_profile
from benchmarks.console import print_table, wide_console
from benchmarks.datasets import find_photographs
from benchmarks.public_names import load_kernels
from benchmarks.suite import (
    SEED,
    Operation,
    TimedSuite,
    Timings,
    as_samples,
    attributes,
    explained,
    in_rounds,
    ratios,
    spread,
)

PROFILE = chosen_profile()
BATCH_SIZE, IMAGE_SIZE, PREFETCH_SIZE = 64, 224, 3
THREADS = 2
DECODERS = {"turbo": "simplejpeg", "pillow": "PIL"}
MEASURING_TIMEOUT_SECONDS = 3600
# The share of the decoder's rate to reach.
AIM = 0.85


@explained
class Decode(TimedSuite):
    """An epoch of photographs to normalised float32 with two threads, and the same files through the decoder alone."""

    params = [list(DECODERS)]
    param_names = ["decoder"]

    @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
    def setup_cache(self) -> Timings:
        return in_rounds(make_operations(find_photographs(PROFILE.samples), THREADS), PROFILE.rounds)

    def operations(self, decoder: str) -> tuple[str, ...]:
        return decoder, decoder_alone(decoder)

    @attributes(unit="ratio")
    def track_over_decoder(self, cache: Timings, decoder: str) -> dict[str, Any]:
        """Seconds over those of the decoder alone: at 1.0 all else costs nothing."""
        return as_samples(ratios(cache, *self.operations(decoder)))


def decoder_alone(decoder: str) -> str:
    """Return the name of the operation that only decodes."""
    return f"{decoder}, decoder alone"


def make_operations(photographs: Path, threads: int) -> dict[str, Operation]:
    """Return an epoch and the decoder alone, for each decoder that is installed. Each has been run once, to warm up."""
    source = etl.ImageFolder(photographs)
    encoded = [source[index]["features"] for index in range(len(source))]
    operations: dict[str, Operation] = {}
    for name, library in DECODERS.items():
        if name not in etl.stages.DECODERS or importlib.util.find_spec(library) is None:
            continue
        stage = etl.image_pipeline(IMAGE_SIZE, name).until("decode")
        operations[decoder_alone(name)] = lambda stage=stage: in_threads(  # type: ignore[misc]
            lambda index: stage({"features": encoded[index]}), len(encoded), threads
        )
        operations[name] = make_epoch(source, name, threads)
    load_kernels()
    for operation in operations.values():
        operation()
    return operations


def make_epoch(source: etl.ImageFolder, decoder: str, threads: int) -> Operation:
    """Return a function that loads one epoch with a decoder of `DECODERS` and checks that it was whole."""
    pipeline = etl.image_pipeline(IMAGE_SIZE, decoder)
    raw = etl.RawIterator(source, pipeline, BATCH_SIZE, shuffle=True, seed=SEED)
    iterator = etl.AsyncIterator(raw, PREFETCH_SIZE, threads=threads)

    def load() -> None:
        records = sum(len(batch.features) for batch in iterator)
        if records != len(source):
            raise RuntimeError(f"{records} of {len(source)} records were loaded")

    return load


def in_threads(work: Callable[[int], object], count: int, threads: int) -> None:
    """Call `work` with every index below `count`, distributed over threads in turn."""

    def take(first: int) -> None:
        for index in range(first, count, threads):
            work(index)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(take, range(threads)))


def measure_cpu(operations: dict[str, Operation], photographs: int) -> dict[str, float]:
    """Return the CPU seconds of each operation for 1,000 photographs."""
    seconds = {}
    for name, operation in operations.items():
        started = time.process_time()
        operation()
        seconds[name] = (time.process_time() - started) / photographs * 1000
    return seconds


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--photographs", type=int, default=512, metavar="N", help="photographs in an epoch (default: 512)"
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="interleaved rounds (default: 10)")
    parser.add_argument(
        "--threads", type=int, default=THREADS, metavar="N", help=f"threads that load (default: {THREADS})"
    )
    options = parser.parse_args(arguments)
    operations = make_operations(find_photographs(options.photographs), options.threads)
    results = in_rounds(operations, options.rounds)
    cpu = [measure_cpu(operations, options.photographs) for _ in range(3)]
    table = Table(
        title=f"{options.photographs:,} photographs to {IMAGE_SIZE} x {IMAGE_SIZE}, {options.threads} threads, "
        f"{options.rounds} interleaved rounds",
        caption=f"share of the decoder's rate: median (lowest to highest); the aim is {AIM}",
    )
    table.add_column("")
    for column in ("images/s", "share", "CPU s per 1,000"):
        table.add_column(column, justify="right")
    for decoder in DECODERS:
        for name in (decoder_alone(decoder), decoder):
            if name not in results:
                continue
            shares = ratios(results, decoder_alone(decoder), name)
            rate = options.photographs / statistics.median(results[name])
            table.add_row(name, f"{rate:,.0f}", spread(shares), f"{np.median([each[name] for each in cpu]):.2f}")
    print_table(table, wide_console())


if __name__ == "__main__":
    main()
