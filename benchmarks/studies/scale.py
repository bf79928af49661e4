"""The cost of opening and reading stores, small and very large: `python -m benchmarks.studies.scale`.

Each metric is taken in several fresh processes. The aims: opening takes less than 50 ms, and no more memory for many
records than for few; the order of an epoch takes at most 8 bytes a record.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.table import Table

import etl
import presave
from benchmarks.console import print_table, wide_console
from benchmarks.studies.study import in_fresh_process
from benchmarks.suite import spread

COUNTS = (10_000, 1_000_000, 10_000_000)
BATCH_SIZE = 128
ROUNDS = 5


class SmallRecords:
    """A source of `count` records of 8 bytes: features, float32 of shape `(2,)`."""

    def __init__(self, count: int) -> None:
        self._features = np.arange(2 * count, dtype=np.float32).reshape(count, 2)

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": self._features[index]}


def main(arguments: list[str] | None = None) -> None:
    """Write the stores, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.scale", description=__doc__.partition("\n")[2])
    parser.add_argument("--records", type=int, nargs="+", default=COUNTS, metavar="N", help="records of each store")
    parser.add_argument("--format", default="npy", help=", ".join(presave.formats()))
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"processes (default: {ROUNDS})")
    parser.add_argument(
        "--folder", metavar="DIR", help="on the disk to write to (default: the system's for temporaries)"
    )
    options = parser.parse_args(arguments)
    table = Table(title=f"stores of 8 bytes a record, format {options.format}, median of {options.rounds} processes")
    names = (
        *("records", "shards", "seconds to write", "manifest KB", "open ms", "first gather ms", "open private KB"),
        *("open traced KB", "order bytes a record"),
    )
    for name in names:
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        written = [_write(count, options.format, Path(folder)) for count in options.records]
        measured: list[list[dict[str, float]]] = [[] for _ in written]
        for _ in range(options.rounds):
            for (path, _seconds), samples in zip(written, measured, strict=True):
                samples.append(in_fresh_process(measure, path))
        for count, (path, seconds), samples in zip(options.records, written, measured, strict=True):
            with presave.open_store(path, trusted=True) as store:
                shards = len(store.manifest.shards)
            table.add_row(
                f"{count:,}",
                f"{shards:,}",
                f"{seconds:.1f}",
                f"{(path / 'manifest.json').stat().st_size / 1e3:,.1f}",
                spread([sample["open_seconds"] * 1e3 for sample in samples], 1),
                spread([sample["gather_seconds"] * 1e3 for sample in samples], 1),
                spread([sample["open_private_nbytes"] * 1e-3 for sample in samples], 1),
                spread([sample["open_traced_nbytes"] * 1e-3 for sample in samples], 1),
                spread([sample["order_nbytes_a_record"] for sample in samples], 1),
            )
    print_table(table, wide_console())


def measure(path: Path) -> dict[str, float]:
    """Measure the store at `path`: first seconds and pages, then again with every allocation traced."""
    process = psutil.Process()
    # Private pages, which the kernel counts on request; its running count of resident pages lags behind.
    before = process.memory_full_info().uss
    started = time.perf_counter()
    store = presave.open_store(path, trusted=True)
    opened = time.perf_counter()
    after = process.memory_full_info().uss
    indices = np.random.default_rng(0).integers(0, len(store), BATCH_SIZE)
    began = time.perf_counter()
    store.gather(indices)
    gathered = time.perf_counter()
    store.close()

    tracemalloc.start()
    with presave.open_store(path, trusted=True) as store:
        opening = tracemalloc.get_traced_memory()[0]
        iterator = etl.PresavedIterator(store, etl.Pipeline([]), BATCH_SIZE, shuffle=True)
        tracemalloc.reset_peak()
        next(iter(iterator))
        ordering = tracemalloc.get_traced_memory()[1] - opening
        records = len(store)
    return {
        "open_seconds": opened - started,
        "gather_seconds": gathered - began,
        "open_private_nbytes": after - before,
        "open_traced_nbytes": opening,
        "order_nbytes_a_record": ordering / records,
    }


def _write(count: int, format_name: str, folder: Path) -> tuple[Path, float]:
    path = folder / f"{count}.store"
    records = SmallRecords(count)
    started = time.perf_counter()
    presave.write(path, records, format=format_name).close()
    return path, time.perf_counter() - started


if __name__ == "__main__":
    main()
