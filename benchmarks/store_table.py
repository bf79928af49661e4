"""Formats and stages: the cost to write and keep a store, and the speed at which training batches come out of it."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from rich.console import Console
from rich.table import Table

import etl
from benchmarks.cells import FORMATS, STAGES
from benchmarks.console import print_table, say
from benchmarks.measuring.arrays import BatchDigest
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.page_cache import drop_from_page_cache
from benchmarks.measuring.rounds import Rounds
from benchmarks.workload import JOBS, SEED, after, open_store, write_store
from benchmarks.write_sample import Photographs

BATCH_SIZE = 64
RAW = "raw"

# Format and last stage before writing; (RAW, "") decodes in every epoch.
Cell = tuple[str, str]
# One round: seconds to write, bytes on disk, seconds of an epoch warm and cold (None if pages stayed in the cache).
Sample = dict[str, "float | None"]


@dataclass(frozen=True)
class StoreLoading:
    """The iterators of the table. All load the same photographs in the same order, as normalised float32."""

    photographs: Photographs

    def source(self) -> Any:
        """Open the encoded photographs."""
        return etl.ImageFolder(self.photographs.folder)

    def pipeline(self) -> etl.Pipeline:
        """Return all stages, from encoded bytes to a training array."""
        return etl.image_pipeline(size=self.photographs.image_size)

    def raw(self) -> AbstractContextManager[Any]:
        """Return the iterator that decodes in every epoch."""
        return etl.RawIterator(self.source(), self.pipeline(), BATCH_SIZE, shuffle=True, seed=SEED)

    @contextmanager
    def presaved(self, path: Path, cell: Cell) -> Iterator[Any]:
        """Open the iterator over the store at `path`; close both afterwards."""
        format_name, stage = cell
        with (
            open_store(path, format_name) as store,
            etl.PresavedIterator(store, after(self.pipeline(), stage), BATCH_SIZE, shuffle=True, seed=SEED) as iterator,
        ):
            yield iterator


def show_store_table(photographs: Photographs, rounds: int, folder: Path, console: Console) -> dict[str, list[Sample]]:
    """Measure all formats and stages, print the table, and return the samples."""
    loading = StoreLoading(photographs)
    with loading.raw() as iterator:
        expected = _digest(iterator)
    every = [(format_name, stage) for stage in STAGES for format_name in FORMATS]
    reasons = {cell: _check(cell, loading, folder / "checked.store", expected) for cell in every}
    cells = [(RAW, ""), *(cell for cell, reason in reasons.items() if not reason)]
    missing = {cell: reason for cell, reason in reasons.items() if reason}
    measured = Rounds(cells, lambda cell, number: _sample(cell, loading, folder / f"{number}.store"))
    measured.run(rounds)
    results = {cell: list(samples.values()) for cell, samples in measured.samples.items()}
    _print(results, missing, photographs, rounds, console)
    return {" ".join(cell): samples for cell, samples in results.items()}


def _check(cell: Cell, loading: StoreLoading, path: Path, expected: str) -> str:
    """Return why this cell cannot be measured; an empty string if it loads the same bytes as the others."""
    try:
        write_store(path, loading.source(), loading.pipeline(), *cell)
        with loading.presaved(path, cell) as iterator:
            found = _digest(iterator)
    except Exception as error:  # noqa: BLE001 - a format that is not installed, or a stage that it cannot hold
        return f"{type(error).__name__}: {error}"
    finally:
        rmtree(path, ignore_errors=True)
    return "" if found == expected else f"{found} is not the digest of the raw epoch, {expected}"


def _sample(cell: Cell, loading: StoreLoading, path: Path) -> Sample:
    gc.collect()  # an uncollected memory map of the files would keep their pages
    if cell[0] == RAW:
        return {"write": 0.0, "nbytes": 0.0, **_epochs(loading.raw, Path(loading.photographs.folder))}
    started = time.perf_counter()
    write_store(path, loading.source(), loading.pipeline(), *cell)
    seconds = time.perf_counter() - started
    try:
        nbytes = float(sum(file.stat().st_size for file in path.iterdir()))
        return {
            "write": seconds,
            "nbytes": nbytes,
            **_epochs(lambda: loading.presaved(path, cell), path),
        }
    finally:
        rmtree(path)


def _epochs(open_iterator: Callable[[], AbstractContextManager[Any]], folder: Path) -> Sample:
    """Time the first epoch after the files below `folder` are dropped from the page cache, and the next."""
    stayed = drop_from_page_cache(path for path in folder.rglob("*") if path.is_file())
    with open_iterator() as iterator:
        cold = run_epoch(iterator, None).wall.total
        warm = run_epoch(iterator, None).wall.total
    return {"cold": None if stayed else cold, "warm": warm}


def _digest(iterator: Any) -> str:
    digest = BatchDigest()
    for batch in iterator:
        digest.update(batch)
    return digest.hexdigest()


def _print(
    results: dict[Cell, list[Sample]], missing: dict[Cell, str], photographs: Photographs, rounds: int, console: Console
) -> None:
    table = Table(
        title=f"{photographs.records} photographs, at {photographs.image_size}, {JOBS} jobs to write, one thread to "
        f"load batches of {BATCH_SIZE} shuffled to float32; median of {rounds} interleaved rounds (lowest to highest)"
    )
    for name in ("stage", "format", "seconds to write", "MB", "images/s warm", "images/s cold", "epochs to pay off"):
        table.add_column(name, justify="left" if name in ("stage", "format") else "right")
    raw = results[RAW, ""]
    for cell, samples in results.items():
        format_name, stage = cell
        table.add_row(
            stage or RAW,
            format_name if stage else "",
            _spread([sample["write"] for sample in samples], "{:.2f}"),
            f"{(samples[0]['nbytes'] or 0) / 1e6:,.1f}",
            *(
                _spread([_rate(photographs.records, sample[state]) for sample in samples], "{:,.0f}")
                for state in ("warm", "cold")
            ),
            _spread([_break_even(sample, first) for sample, first in zip(samples, raw, strict=True)], "{:.1f}"),
        )
    for format_name, stage in missing:
        table.add_row(stage, format_name, *["n/a"] * (len(table.columns) - 2))
    print_table(table, console, keys=2)
    for (format_name, stage), reason in missing.items():
        say(f"{stage}, {format_name}: {reason}", console)


def _rate(records: int, seconds: float | None) -> float | None:
    return None if seconds is None else records / seconds


def _break_even(sample: Sample, raw: Sample) -> float | None:
    """Return the warm epochs after which writing has paid off, infinite if it never does; None for raw itself."""
    write, warm, raw_warm = sample["write"], sample["warm"], raw["warm"]
    if not write or warm is None or raw_warm is None:
        return None
    return write / (raw_warm - warm) if warm < raw_warm else math.inf


def _spread(values: list[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "n/a"
    shown = ["never" if math.isinf(value) else form.format(value) for value in (min(known), max(known))]
    median = statistics.median_high(known)
    return f"{'never' if math.isinf(median) else form.format(median)} ({' to '.join(shown)})"
