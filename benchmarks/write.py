"""Photographs written into a store, against the decoder alone, and against the writers of MosaicML Streaming and FFCV.

    python -m benchmarks.write [--peers PYTHON]     prints seconds and ratios; PYTHON has the other writers
    python -m benchmarks.write --table              formats and stages, see store_table.py

asv leaves the other writers out unless they are installed in its environment: this project does not depend on them.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

import etl
from benchmarks.cells import chosen_profile
from benchmarks.console import print_table, wide_console
from benchmarks.datasets import find_photographs
from benchmarks.measuring.rounds import Rounds
from benchmarks.servers import ISOLATED_MAIN
from benchmarks.store_table import show_store_table
from benchmarks.suite import Suite, as_samples, attributes, explained, ratios, spread
from benchmarks.write_sample import DECODER, JOBS, WRITERS, Photographs, is_importable, take_sample

PROFILE = chosen_profile()
# Larger than in the training workloads: the size of nearly all published benchmarks.
IMAGE_SIZE = 224
# Profile "quick" then takes seconds: 54 photographs are two whole shards, one for each of two jobs.
SHARE_OF_PHOTOGRAPHS = 0.42
MEASURING_TIMEOUT_SECONDS = 3600
SAMPLE_TIMEOUT_SECONDS = 900
# The writers that are installed: a series whose values are all n/a makes asv's bar chart blank.
WRITERS_HERE = tuple(writer for writer in WRITERS if is_importable(writer))

WriteMetrics = dict[str, float]
# The metrics of every round, by writer and number of jobs.
WriterSamples = dict[tuple[str, int], list[WriteMetrics]]
WriterSeconds = dict[tuple[str, int], list[float]]


@explained
class Write(Suite):
    """Photographs decoded, resized to 224 and written, by one or two jobs."""

    params = [list(WRITERS_HERE), list(JOBS)]
    param_names = ["writer", "jobs"]

    @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
    def setup_cache(self) -> WriterSeconds:
        photographs = Photographs(
            str(find_photographs(PROFILE.samples)), IMAGE_SIZE, round(PROFILE.samples * SHARE_OF_PHOTOGRAPHS)
        )
        folder = str(Path.cwd())
        return seconds_of(
            measure_writers(
                WRITERS_HERE, PROFILE.rounds, lambda writer, jobs: take_sample(writer, jobs, photographs, folder)
            )
        )

    @attributes(unit="seconds")
    def track_write(self, cache: WriterSeconds, *values: Any) -> dict[str, Any]:
        """Seconds to decode, resize and write."""
        return as_samples(cache[values])

    @attributes(unit="ratio")
    def track_write_over_decoding(self, cache: WriterSeconds, *values: Any) -> dict[str, Any]:
        """Seconds over those of the decoder alone with as many threads: at 1.0 writing costs nothing."""
        return as_samples(ratios(cache, values, (DECODER, values[1])))


@explained
class SecondJob(Suite):
    """The gain of a second job: at best 0.5, on two free cores; the aim is 1 / 1.8 = 0.56."""

    params = [list(WRITERS_HERE)]
    param_names = ["writer"]
    setup_cache = Write.setup_cache

    @attributes(unit="ratio")
    def track_two_jobs_over_one(self, cache: WriterSeconds, writer: str) -> dict[str, Any]:
        """Seconds with two jobs over seconds with one."""
        return as_samples(ratios(cache, (writer, 2), (writer, 1)))


def measure_writers(writers: Iterable[str], rounds: int, sample: Callable[[str, int], WriteMetrics]) -> WriterSamples:
    """Take one sample a round for each writer and number of jobs."""
    measured = Rounds([(writer, jobs) for writer in writers for jobs in JOBS], lambda each, _: sample(*each))
    measured.run(rounds)
    return {each: list(samples.values()) for each, samples in measured.samples.items()}


def seconds_of(measured: WriterSamples) -> WriterSeconds:
    """Return the seconds until a writer was done."""
    return {each: [metrics["seconds"] for metrics in samples] for each, samples in measured.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.write", description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has mosaicml-streaming, ffcv or both")
    parser.add_argument("--table", action="store_true", help="formats and stages instead of writers")
    parser.add_argument("--photographs", type=int, default=512, metavar="N", help="photographs to write (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="interleaved rounds (default: 5)")
    parser.add_argument(
        "--folder", metavar="DIR", help="on the disk to write to (default: the system's for temporaries)"
    )
    parser.add_argument("--json", metavar="FILE", help="save the samples of every round")
    options = parser.parse_args(arguments)
    photographs = Photographs(str(find_photographs(options.photographs)), IMAGE_SIZE, options.photographs)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        samples: Any
        if options.table:
            samples = show_store_table(photographs, options.rounds, Path(folder), wide_console())
        else:
            samples = show_writers(photographs, options.rounds, folder, options.peers)
    if options.json:
        Path(options.json).write_text(json.dumps(samples, indent=1) + "\n")


def show_writers(
    photographs: Photographs, rounds: int, folder: str, peers: str | None
) -> dict[str, list[WriteMetrics]]:
    """Measure all writers, each sample in a fresh process, print seconds and ratios, and return the samples."""
    pythons = dict.fromkeys(WRITERS_HERE, sys.executable)
    if peers is not None:
        found = (writer for writer in WRITERS if writer not in pythons)
        pythons |= dict.fromkeys(found, peers)

    def sample(writer: str, jobs: int) -> WriteMetrics:
        return _in_fresh_process(pythons[writer], writer, jobs, photographs, folder)

    missing = [writer for writer in WRITERS if writer not in pythons or not sample(writer, 1)]
    results = measure_writers([writer for writer in WRITERS if writer not in missing], rounds, sample)
    table = Table(
        title=f"{photographs.records} photographs to uint8 at {IMAGE_SIZE}, median of {rounds} interleaved rounds "
        "(lowest to highest)"
    )
    names = ("writer", "jobs", "seconds", "images/s", "over the decoder alone", "over one job", "presave over it")
    for name in (*names, "with flush", "MB"):
        table.add_column(name, justify="left" if name == "writer" else "right")
    seconds = seconds_of(results)
    for (writer, jobs), samples in results.items():
        table.add_row(
            writer,
            str(jobs),
            spread(seconds[writer, jobs], 3),
            f"{photographs.records / statistics.median(seconds[writer, jobs]):,.0f}",
            spread(ratios(seconds, (writer, jobs), (DECODER, jobs)), 3),
            spread(ratios(seconds, (writer, jobs), (writer, 1)), 3),
            spread(ratios(seconds, ("presave", jobs), (writer, jobs)), 3),
            spread([metrics["durable_seconds"] for metrics in samples], 3),
            f"{samples[0]['nbytes'] / 1e6:,.1f}",
        )
    for writer in missing:
        table.add_row(writer, *["n/a"] * (len(table.columns) - 1))
    print_table(table, wide_console(), keys=2)
    return {f"{writer}-{jobs}": samples for (writer, jobs), samples in results.items()}


def _in_fresh_process(python: str, writer: str, jobs: int, photographs: Photographs, folder: str) -> WriteMetrics:
    """Take one sample in a fresh process; return an empty dict if `python` does not have the writer."""
    request = {"writer": writer, "jobs": jobs, "photographs": photographs.__dict__, "folder": folder}
    environment = dict(os.environ)
    if python != sys.executable:
        # Both interpreters use this project's code from here; the other one need not have it installed.
        environment["PYTHONPATH"] = str(Path(inspect.getfile(etl)).parents[1])
    done = subprocess.run(
        [python, str(ISOLATED_MAIN), "write_sample:main"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        timeout=SAMPLE_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{writer} with {jobs} jobs failed in {python}:\n{done.stderr[-2000:]}")
    metrics: WriteMetrics | None = json.loads(done.stdout)
    return metrics or {}


if __name__ == "__main__":
    main()
